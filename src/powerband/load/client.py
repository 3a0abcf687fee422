"""Connections: sockets that carry exchanges, as many as there are exchanges under way.

Plain HTTP goes over sockets of our own, TLS over an asyncio transport; the measurement behind this is in
docs/concepts/load.md.
"""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import deque
from typing import Any, Protocol

from powerband.load.arrival import ask_for_stamps, receive
from powerband.load.exchange import Exchange
from powerband.load.target import Target
from powerband.load.tokens import tls_context
from powerband.load.watch import Watch
from powerband.records.errors import EngineError

_READ_BYTES = 1 << 16
_ONE_SEGMENT = 1200  # bytes that surely go in one packet
_MANY_RIPE = 256  # answers that wait to be parsed
# Bytes read this soon after they can have come need no stamp. Asking for one takes 5 us, so that a client at its limit
# asks for so many in a while and no more.
_PUNCTUAL_NS, _STAMPS, _WHILE_NS = 300_000, 1_000, 100_000_000
_LINGER_S = 0.1  # how long the end of the HTTP message may come after [DONE]


class _Connection(Protocol):
    def send(self, exchange: Exchange) -> None: ...

    def close(self) -> None: ...


class Client:
    """Sends exchanges to one target, over new connections or (``keep_alive``) over those that wait.

    A ``patient`` client parses whole answers one a round of its event loop; else they end at once.
    """

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop, *, patient: bool) -> None:
        host, port, tls, _ = target.address()
        self.loop = loop
        self.family, self.address = _resolve(host, port)
        self.buffer = bytearray(_READ_BYTES)  # one for all: what is read is copied out at once
        self.view = memoryview(self.buffer)
        self.watch = Watch(loop)
        self._stamps, self._while_ns = 0, 0  # stamps left, until when
        self._tls, self._host = (tls_context(target) if tls else None), host
        self._keep_alive = target.keep_alive
        self._patient, self._ripe = patient, deque[PlainConnection]()
        self._idle: list[_Connection] = []
        self._open: dict[Exchange, _Connection | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, exchange: Exchange) -> None:
        """Begin the exchange now; it ends by its own ``done``."""
        exchange.t_send_ns = time.monotonic_ns()
        if self._idle:
            connection = self._idle.pop()
            self._open[exchange] = connection
            connection.send(exchange)
        elif self._tls is not None:
            self._open[exchange] = None
            task = self.loop.create_task(self._send_tls(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            plain = PlainConnection(self)
            self._open[exchange] = plain
            plain.start(exchange)

    def is_late(self) -> bool:
        """Whether what is read now may have come long ago, and asking when is affordable."""
        now_ns = time.monotonic_ns()
        if now_ns - self.watch.looked_ns <= _PUNCTUAL_NS:
            return False
        if now_ns >= self._while_ns:
            self._stamps, self._while_ns = _STAMPS, now_ns + _WHILE_NS
        self._stamps -= 1
        return self._stamps >= 0

    def keeps(self, exchange: Exchange, connection: _Connection) -> bool:
        """The exchange has ended; whether its connection is put by for another one (before ``done`` asks for one)."""
        self._open.pop(exchange, None)
        kept = self._keep_alive and exchange.reusable and exchange.error is None
        if kept:
            self._idle.append(connection)
        return kept

    def settle(self, connection: "PlainConnection") -> None:
        """The connection's exchange is ripe: parse it, now or when there is time."""
        if not self._patient:
            connection.settle()
            return
        self._ripe.append(connection)
        if len(self._ripe) == 1:
            self.loop.call_soon(self._settle_next)

    def settle_all(self) -> None:
        """The run is over: an answer that has come as a whole has ended."""
        self._ripe.clear()
        for exchange, connection in list(self._open.items()):
            exchange.parse_all()
            if exchange.ended and connection is not None:
                connection.close()
                self.over(exchange)

    def _settle_next(self) -> None:
        """One a round of the event loop: what is due or comes waits for one at most; more where they pile up."""
        for _ in range(min(len(self._ripe), 1 + len(self._ripe) // _MANY_RIPE)):
            self._ripe.popleft().settle()
        if self._ripe:
            self.loop.call_soon(self._settle_next)

    def over(self, exchange: Exchange) -> None:
        """The exchange has ended and its connection is of no more use."""
        self._open.pop(exchange, None)
        exchange.done(exchange)

    def gone(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def cut(self, exchange: Exchange) -> None:
        """Drop the connection of an exchange that took too long."""
        connection = self._open.get(exchange)
        if connection is not None:
            connection.close()
        self.over(exchange)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for connection in [*self._open.values(), *self._idle]:
            if connection is not None:
                connection.close()
        self._open.clear()
        self._idle.clear()
        self.watch.close()

    async def _send_tls(self, exchange: Exchange) -> None:
        try:
            _, connection = await self.loop.create_connection(
                lambda: TlsConnection(self),
                *self.address[:2],
                family=self.family,
                ssl=self._tls,
                server_hostname=self._host,
            )
        except OSError as error:
            exchange.end(connect_error(error))
            self.over(exchange)
            return
        if exchange.ended:  # timed out meanwhile
            connection.close()
            return
        self._open[exchange] = connection
        connection.send(exchange)


class PlainConnection:
    """A socket of our own, watched by the client's Watch: a quarter of the cost of a transport for short answers."""

    __slots__ = ("_client", "_exchange", "_fd", "_linger", "_sock", "_stamped", "_unsent")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._exchange: Exchange | None = None
        self._sock: socket.socket | None = None
        self._fd = -1
        self._stamped = False
        self._unsent: memoryview | None = None
        self._linger: asyncio.TimerHandle | None = None

    def start(self, exchange: Exchange) -> None:
        """Connect and send; a connect that is still under way goes on when the socket is ready."""
        self._exchange = exchange
        try:
            self._sock = sock = socket.socket(self._client.family, socket.SOCK_STREAM)
            sock.setblocking(False)
            self._stamped = ask_for_stamps(sock)
            if len(exchange.payload) > _ONE_SEGMENT:  # the last part of several would wait for an acknowledgement
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(BlockingIOError):
                sock.connect(self._client.address)
        except OSError as error:
            if self._sock is not None:
                self._sock.close()
                self._sock = None
            self._over(exchange, connect_error(error))
            return
        self._fd = sock.fileno()
        self._client.watch.add(self._fd, self)
        self._write(memoryview(exchange.payload))

    def send(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._write(memoryview(exchange.payload))

    def close(self) -> None:
        if self._sock is None:
            return
        if self._linger is not None:
            self._linger.cancel()
        self._client.watch.remove(self._fd)
        self._sock.close()
        self._sock = None

    def writable(self) -> None:
        """The socket takes more of the request, or the connect has ended one way or the other."""
        if self._unsent is None or self._sock is None:
            return
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lost(OSError(code, os.strerror(code)), connecting=True)
        else:
            self._write(self._unsent)

    def readable(self) -> None:
        client = self._client
        if self._sock is None:
            return
        try:
            if self._stamped and client.is_late():
                count, t_ns = receive(self._sock, client.buffer)
            else:
                count = self._sock.recv_into(client.buffer)
                t_ns = time.monotonic_ns()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error, connecting=self._unsent is not None)
            return
        if count == 0:
            self._lost(None, connecting=False)
            return
        exchange = self._exchange
        if exchange is None:  # after the end of an answer, so not ours; nor would what follows be of the next request
            self._lost(None, connecting=False)
            return
        exchange.received(t_ns, bytes(client.view[:count]))
        if exchange.ripe:
            client.settle(self)
        elif exchange.ended:
            self._ended(exchange)

    def settle(self) -> None:
        """Parse what has come of the exchange; most often it ends."""
        exchange = self._exchange
        if exchange is None or exchange.ended:
            return  # lost or timed out meanwhile
        exchange.parse()
        if exchange.ended:
            self._ended(exchange)
        elif exchange.said_done and self._linger is None:
            self._linger = self._client.loop.call_later(_LINGER_S, self._conclude, exchange)

    def _write(self, data: memoryview) -> None:
        assert self._sock is not None
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._lost(error, connecting=True)
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._client.watch.want_write(self._fd, True)
        elif self._unsent is not None:
            self._unsent = None
            self._client.watch.want_write(self._fd, False)

    def _ended(self, exchange: Exchange) -> None:
        self._exchange = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not self._client.keeps(exchange, self):
            self.close()
        exchange.done(exchange)

    def _conclude(self, exchange: Exchange) -> None:
        if self._exchange is exchange:
            exchange.conclude()
            self._ended(exchange)

    def _lost(self, error: OSError | None, *, connecting: bool) -> None:
        exchange, self._exchange = self._exchange, None
        self._client.gone(self)
        self.close()
        if exchange is None:
            return
        if error is not None and connecting and not exchange.status:
            self._over(exchange, connect_error(error))
        else:
            exchange.lost(time.monotonic_ns(), error)
            self._client.over(exchange)

    def _over(self, exchange: Exchange, error: str) -> None:
        exchange.end(error)
        self._client.over(exchange)


class TlsConnection(asyncio.Protocol):
    """The same over an asyncio transport, which does the encryption."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._transport is None or self._transport.is_closing():
            self.connection_lost(None)
        else:
            self._transport.write(exchange.payload)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        t_ns = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            return
        exchange.received(t_ns, data)
        if exchange.ripe:
            exchange.parse()
        if exchange.said_done and not exchange.ended:
            exchange.conclude()  # the transport takes in the end of the message by itself
        if exchange.ended:
            self._exchange = None
            if not self._client.keeps(exchange, self) and self._transport is not None:
                self._transport.close()
            exchange.done(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self._client.gone(self)
        if exchange is not None and not exchange.ended:  # it may have timed out, or the run be over
            exchange.lost(time.monotonic_ns(), exc)
            self._client.over(exchange)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Once, before the run, so that no request waits for a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EngineError(f"cannot find host {host!r}: {error}", hint="check the URL") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # v4 first: servers often listen on 0.0.0.0 only
    return found[0][0], found[0][4]


def connect_error(error: OSError) -> str:
    """The category and detail for a connection that could not be made; ``in the client`` marks our own limits."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "connect: too many open files in the client"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
        return "connect: no free port in the client"
    named = errno.errorcode.get(error.errno or 0, "")
    return f"connect: {error.strerror or type(error).__name__}" + (f" ({named})" if named else "")
