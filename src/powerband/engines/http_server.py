"""A small HTTP server: requests in, whole or streamed answers out; one asyncio loop, any thread may answer.

The fake server writes these same bytes through a connection of its own, which stalls and resets when told to.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus

import httptools
import msgspec

from powerband.records.units import MIB

MAX_BODY_BYTES = 64 * MIB
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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


class Call:
    """One request and the way back. ``write`` may be called from any thread.

    ``on_gone`` is called on the loop where the client goes away before the answer is over.
    """

    __slots__ = ("_connection", "_loop", "body", "gone", "method", "on_gone", "path")

    def __init__(self, connection: "Connection", method: str, path: str, body: bytes) -> None:
        self._connection, self._loop = connection, connection.loop
        self.method, self.path, self.body = method, path, body
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send ``data``; after the ``last`` of an answer the connection's next request has its turn."""
        self._loop.call_soon_threadsafe(self._connection.send, self, data, last)


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
        self._url, self._size = b"", 0
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect" and self._transport is not None:
            self._transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            self._refuse(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.split(b"?", 1)[0].decode("latin-1")
        call = Call(self, self._parser.get_method().decode(), path, b"".join(self._body))
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

    def _refuse(self, status: int, message: str) -> None:
        if self._transport is not None:
            self._transport.write(response(status, error_body(status, message)))
            self._transport.close()
