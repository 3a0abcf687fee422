"""One HTTP exchange over a socket: bytes out, timestamps in.

asyncio's Protocol with httptools, because a client that shares the machine with the engine must be light: see
docs/concepts/load.md for the measurement behind the choice.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from typing import Any

import httptools
import msgspec

from powerband.load.answer import Answer
from powerband.load.sse import Decode, SseReader
from powerband.load.target import Target
from powerband.load.tokens import tls_context
from powerband.records.errors import EngineError

_LINGER_S = 1.0  # how long a finished answer's connection may stay open before it is cut
_DETAIL_CHARS = 200


class Exchange:
    """One request under way: its bytes, and what has come of it; ``done`` is called once, when it has ended."""

    __slots__ = ("answer", "body", "done", "ended", "error", "payload", "status", "streamed", "t_end_ns", "t_send_ns")

    def __init__(self, payload: bytes, done: Callable[["Exchange"], None]) -> None:
        self.payload = payload
        self.done = done
        self.answer = Answer()
        self.body = b""  # of an answer that is not a stream
        self.status = 0
        self.streamed = True
        self.ended = False
        self.error: str | None = None
        self.t_send_ns: int | None = None
        self.t_end_ns: int | None = None

    def end(self, error: str | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        self.error = error
        self.t_end_ns = time.monotonic_ns()
        self.payload = b""
        self.done(self)


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time; the answer's bytes are stamped as the socket gives them."""

    def __init__(self, decode: Decode, idle: list["Connection"] | None) -> None:
        self._decode = decode
        self._idle = idle  # where to wait for the next exchange; None: one exchange a connection
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._sse = SseReader()
        self._now = 0
        self._keep = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._sse = SseReader()
        if self._transport is None or self._transport.is_closing():
            self._fail("reset: closed before the request was sent")
        else:
            self._transport.write(exchange.payload)

    def abort(self) -> None:
        """Drop the exchange without ending it: the run is over."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic_ns()
        if self._exchange is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"malformed: HTTP: {error.__context__ or error}")
        except msgspec.MsgspecError as error:
            self._fail(f"malformed: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self._exchange
        if self._idle is not None and self in self._idle:
            self._idle.remove(self)
        if exchange is None:
            return
        if exc is None and exchange.status and exchange.answer.finish is not None:
            self._complete()  # an answer whose end is the end of the connection
            return
        tokens = exchange.answer.seen()
        how = type(exc).__name__ if exc is not None else "closed by the server"
        self._fail(f"reset: {how} " + (f"after {tokens} chunks" if exchange.status else "before any answer"))

    # httptools calls these

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type" and self._exchange is not None:
            self._exchange.streamed = b"event-stream" in value.lower()

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()
            self._keep = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.status != 200 or not exchange.streamed:
            exchange.body += data
            return
        for payload in self._sse.feed(data):
            self._take(exchange, payload)
        if exchange.answer.error is not None:
            self._fail(f"stream_error: {exchange.answer.error}")

    def on_message_complete(self) -> None:
        if self._exchange is not None and self._exchange.status >= 200:
            self._complete()

    def _take(self, exchange: Exchange, payload: bytes) -> None:
        if payload[:1] == b"{":
            exchange.answer.add(self._now, self._decode(payload))
        elif payload.startswith(b"[DONE]"):
            exchange.answer.finish = exchange.answer.finish or "done"
        elif payload:
            raise msgspec.DecodeError(f"event is not a JSON object: {payload[:40]!r}")

    def _complete(self) -> None:
        """The whole answer is here: say what it was."""
        exchange = self._exchange
        if exchange is None:
            return
        try:
            if exchange.status != 200:
                return self._fail(f"http_{exchange.status}: {_text(exchange.body)}")
            if not exchange.streamed:
                self._take(exchange, exchange.body.strip())
            for payload in self._sse.rest():
                self._take(exchange, payload)
        except msgspec.MsgspecError as error:
            return self._fail(f"malformed: {error}")
        answer = exchange.answer
        if answer.error is not None:
            return self._fail(f"stream_error: {answer.error}")
        if answer.finish is None:
            return self._fail(f"short: the stream ended after {answer.seen()} chunks without a finish")
        if answer.seen() == 0:
            return self._fail(f"short: the answer held no token (finish {answer.finish})")
        self._release()
        exchange.end()
        return None

    def _fail(self, error: str) -> None:
        exchange, self._exchange = self._exchange, None
        if self._transport is not None:
            self._transport.abort()
        if exchange is not None:
            exchange.end(error)

    def _release(self) -> None:
        self._exchange = None
        transport = self._transport
        if transport is None:
            return
        if self._idle is not None and self._keep and not transport.is_closing():
            self._idle.append(self)
        else:
            transport.close()


class Client:
    """Sends exchanges to one target; as many connections as there are exchanges under way."""

    def __init__(self, target: Target, decode: Decode, loop: asyncio.AbstractEventLoop) -> None:
        host, port, tls, _ = target.address()
        self._loop, self._decode = loop, decode
        self._family, self._address = _resolve(host, port)
        self._tls = tls_context(target) if tls else None
        self._host = host
        self._idle: list[Connection] | None = [] if target.keep_alive else None
        self._open: dict[Exchange, Connection | None] = {}

    async def send(self, exchange: Exchange) -> None:
        """Begin the exchange now; it ends by its own ``done``."""
        exchange.t_send_ns = time.monotonic_ns()
        connection = self._idle.pop() if self._idle else None
        if connection is None:
            self._open[exchange] = None
            try:
                connection = await self._connect()
            except OSError as error:
                self._open.pop(exchange, None)
                exchange.end(_connect_error(error))
                return
        if exchange.ended:  # timed out meanwhile
            connection.abort()
            return
        self._open[exchange] = connection
        connection.send(exchange)

    def forget(self, exchange: Exchange) -> None:
        self._open.pop(exchange, None)

    def cut(self, exchange: Exchange) -> None:
        """Stop an exchange that takes too long; its ``done`` is not called."""
        connection = self._open.pop(exchange, None)
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        for connection in [*self._open.values(), *(self._idle or ())]:
            if connection is not None:
                connection.abort()
        self._open.clear()

    async def _connect(self) -> Connection:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(sock, self._address)
            _, connection = await self._loop.create_connection(
                lambda: Connection(self._decode, self._idle),
                sock=sock,
                ssl=self._tls,
                server_hostname=self._host if self._tls else None,
            )
        except BaseException:
            sock.close()
            raise
        return connection


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Once, before the run, so that no request waits for a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EngineError(f"cannot find host {host!r}: {error}", hint="check the URL") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # v4 first: servers often listen on 0.0.0.0 only
    return found[0][0], found[0][4]


def _connect_error(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "connect: too many open files in the client"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
        return "connect: no free port in the client"
    return f"connect: {error.strerror or type(error).__name__}"


def _text(body: bytes) -> str:
    return " ".join(body[: 2 * _DETAIL_CHARS].decode("utf-8", "replace").split())[:_DETAIL_CHARS]
