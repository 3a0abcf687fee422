"""A small HTTP server: requests in, whole or streamed answers out; one asyncio loop, any thread may answer."""

import asyncio
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import TextIO

import httptools
import msgspec

from powerband.records.units import MIB

MAX_BODY_BYTES = 64 * MIB
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Refusal(Exception):
    """An HTTP status with its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_body(status: int, message: str) -> bytes:
    return msgspec.json.encode({"error": {"code": status, "message": message, "type": "invalid_request_error"}})


def response(status: int, body: bytes, content_type: str = "application/json; charset=utf-8") -> bytes:
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def event(body: bytes) -> bytes:
    """One server-sent event in one HTTP chunk."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(body) + 8, body)


async def listen(serve: "Callable[[Call], None]", host: str, port: int, out: TextIO) -> None:
    """Say on ``out`` where it listens, and hand every call to ``serve`` until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(loop, serve), host, port, backlog=4096)
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    out.write(f"listening on http://{host}:{listener.sockets[0].getsockname()[1]}\n")
    out.flush()
    await over.wait()
    listener.close()


class Call:
    """One request and the way back. ``write`` may be called from any thread, ``send`` and ``reset`` on the loop.

    ``on_gone`` is called on the loop where the client goes away before the answer is over.
    """

    __slots__ = ("_connection", "bearer", "body", "gone", "method", "on_gone", "path")

    def __init__(self, connection: "Connection", method: str, path: str, body: bytes, bearer: str) -> None:
        self._connection = connection
        self.method, self.path, self.body, self.bearer = method, path, body, bearer
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send ``data``; after the ``last`` of an answer the connection's next request has its turn."""
        self._connection.loop.call_soon_threadsafe(self._connection.send, self, data, last)

    def send(self, data: bytes, *, last: bool = False) -> None:
        """The same at once."""
        self._connection.send(self, data, last)

    def reset(self) -> None:
        """Break the connection off, in the middle of an answer too."""
        self._connection.reset()


class Connection(asyncio.Protocol):
    """One client connection; requests that come before the last one is answered wait their turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Callable[[Call], None]) -> None:
        self.loop, self._serve = loop, serve
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._calls: deque[tuple[Call, bool]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for call, _ in self._calls:
            call.gone = True
            if call.on_gone is not None:
                call.on_gone()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "no upgrade here")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP: {error}")

    # httptools calls these
    def on_message_begin(self) -> None:
        self._url, self._size, self._bearer = b"", 0, ""
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == b"authorization":
            self._bearer = value.decode("latin-1").removeprefix("Bearer ").strip()
        elif key == b"expect" and self._transport is not None:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            self._refuse(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.split(b"?", 1)[0].decode("latin-1")
        call = Call(self, self._parser.get_method().decode(), path, b"".join(self._body), self._bearer)
        self._calls.append((call, self._parser.should_keep_alive()))
        if len(self._calls) == 1:
            self._serve(call)

    def send(self, call: Call, data: bytes, last: bool) -> None:
        """On the loop: write what belongs to the call whose turn it is."""
        if self._transport is None or not self._calls or self._calls[0][0] is not call:
            return
        self._transport.write(data)
        if not last:
            return
        _, keep_alive = self._calls.popleft()
        if not keep_alive:
            self._transport.close()
        elif self._calls:
            self._serve(self._calls[0][0])

    def reset(self) -> None:
        if self._transport is not None:
            # Without a lingering close the client would see an ordinary end of the stream.
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self._transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        if self._transport is not None:
            self._transport.write(response(status, error_body(status, message)))
            self._transport.close()
