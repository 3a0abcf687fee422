"""The page reader against servers that answer well, badly, slowly, without end, or not at all."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from powerband.probes.http import HttpError, base_url, read_json, read_page
from powerband.records.errors import RequestError


@contextlib.contextmanager
def answering(*pieces: bytes, pause_s: float = 0.0, keep_open: bool = False) -> Iterator[str]:
    """A server that sends ``pieces`` to its first client, whatever is asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                for piece in pieces:
                    client.sendall(piece)
                    if over.wait(pause_s):
                        return
                if keep_open:
                    over.wait(30)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.close()
        thread.join(5)


def test_a_sized_answer_is_whole_though_the_connection_stays_open() -> None:
    with answering(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: x/y\r\n\r\nhe", b"llo", keep_open=True
    ) as url:
        reply = read_page(url)
    assert (reply.status, reply.body, reply.content_type) == (200, b"hello", "x/y")


def test_chunks_and_connection_close_end_an_answer_too() -> None:
    with answering(b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", keep_open=True) as url:
        assert read_page(url).body == b"ab"
    with answering(b"HTTP/1.1 200 OK\r\n\r\n", b"until the end") as url:
        assert read_page(url).text == "until the end"


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), "does not speak HTTP"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",), "in the middle"),
        ((b"HTTP/1.1 200 OK\r\nContent-Le",), "in the middle"),
        ((), "in the middle"),
    ],
)
def test_broken_answers_are_named(pieces: tuple[bytes, ...], said: str) -> None:
    with answering(*pieces) as url, pytest.raises(HttpError, match=said):
        read_page(url)


def test_an_endless_answer_stops_at_the_limit() -> None:
    flood = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * 64]
    with answering(*flood) as url, pytest.raises(HttpError, match="more than 100000 bytes"):
        read_page(url, limit_bytes=100_000)


def test_a_dripping_answer_stops_at_the_time_limit() -> None:
    drops = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", *[b"x"] * 100]
    began = time.monotonic()
    with answering(*drops, pause_s=0.05) as url, pytest.raises(HttpError, match=r"within 0\.3 s"):
        read_page(url, timeout_s=0.3)
    assert time.monotonic() - began < 2


def test_nothing_there_and_no_such_host() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(HttpError, match=f"no connection to 127.0.0.1:{port}"):
            read_page(f"http://127.0.0.1:{port}/health")


def test_json_must_be_json_and_ok() -> None:
    with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]") as url,
        pytest.raises(HttpError, match="not JSON"),
    ):
        read_json(url)
    with (
        answering(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}") as url,
        pytest.raises(HttpError, match="HTTP 503"),
    ):
        read_json(url)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        (" https://a.example/v1/ ", "https://a.example"),
        ("http://a.example/llm/v1", "http://a.example/llm"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_base_url(text: str, base: str) -> None:
    assert base_url(text) == base


@pytest.mark.parametrize(
    "text",
    ["", "ftp://a", "http://", "http://a:99999", "http://a:x", "http://a:0", "http://a/?q=1", "http://u:p@a", "a b"],
)
def test_what_is_no_address_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(RequestError) as raised:
        base_url(text)
    assert raised.value.hint
    assert "u:p" not in raised.value.message
