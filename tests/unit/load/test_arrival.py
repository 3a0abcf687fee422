"""Instants of arrival by the kernel's stamp, read long after the bytes came."""

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from powerband.load.arrival import ask_for_stamps, receive

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stamps are asked for on Linux alone")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


@linux
def test_the_instant_is_that_of_the_last_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    assert ask_for_stamps(client)
    server.sendall(b"first")
    time.sleep(0.03)
    server.sendall(b"second")
    sent_ns = time.monotonic_ns()
    time.sleep(0.05)
    buffer = bytearray(64)
    count, came_ns = receive(client, buffer)
    assert bytes(buffer[:count]) == b"firstsecond"
    assert abs(came_ns - sent_ns) < 20_000_000  # and not 50 ms later


def test_without_stamps_it_is_now(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    server.sendall(b"bytes")
    time.sleep(0.01)
    before_ns = time.monotonic_ns()
    count, came_ns = receive(client, bytearray(64))
    assert count == 5
    assert before_ns <= came_ns <= time.monotonic_ns()


@linux
def test_the_end_and_an_empty_socket_are_told_as_recv_tells_them(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    ask_for_stamps(client)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(client, bytearray(8))
    server.close()
    client.setblocking(True)
    assert receive(client, bytearray(8))[0] == 0
