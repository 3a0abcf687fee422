"""A server that answers each request with given bytes at given delays: the stream is the test's choice."""

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

RESET = b"<reset>"  # abort the connection here
HOLD = b"<hold>"  # say nothing more and keep it open

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OPEN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
END = b"0\r\n\r\n"
Script = list[tuple[float, bytes]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def token(text: str = " a", finish: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def reply(status: int, body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


@dataclass
class Seen:
    """One request as it came; times are time.monotonic_ns()."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int
    t_ns: int
    t_end_ns: int = 0


@dataclass
class ScriptedServer:
    """``script(n, seen)`` gives the answer to the n-th request that is not to /tokenize, which is not served here."""

    script: Callable[[int, Seen], Script]
    tls: ssl.SSLContext | None = None
    seen: list[Seen] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _at_once: int = 0
    _connections: int = 0
    _server: asyncio.Server | None = None

    def stop_listening(self) -> None:
        """For a script to call: no new connection is taken from now on."""
        if self._server is not None:
            self._server.close()

    @contextlib.contextmanager
    def running(self) -> Iterator["ScriptedServer"]:
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls, backlog=512))
        self._server = server
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(_stop(server), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            while await self._one(reader, writer, number):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
            await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = first.split()[1]
        if path.endswith("/tokenize") or path.endswith("/models"):
            writer.write(reply(404, b"{}"))
            return True
        seen = Seen(path, headers, json.loads(body or b"{}"), number, time.monotonic_ns())
        if not seen.body.get("stream", True) or ("max_tokens" in seen.body and seen.body["max_tokens"] == 1):
            writer.write(reply(200, b'{"choices":[{"text":"a"}]}'))  # a calibration request: no usage is given
            return True
        self.seen.append(seen)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            for delay_s, data in self.script(len(self.seen) - 1, seen):
                await asyncio.sleep(delay_s)
                if data == RESET:
                    writer.transport.abort()
                    return False
                if data == HOLD:
                    await asyncio.sleep(60)
                writer.write(data)
                await writer.drain()
        finally:
            self._at_once -= 1
            seen.t_end_ns = time.monotonic_ns()
        return headers.get("connection", "") != "close"


async def _stop(server: asyncio.Server) -> None:
    server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
