"""One request under way: bytes in with their times, an answer or an error out.

A stream's bytes are kept with their times and parsed together, when its end seems to have come, so that taking a
chunk costs little; the parsing itself is by httptools and msgspec.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import httptools
import msgspec

from powerband.load.answer import Answer
from powerband.load.sse import Decode, SseReader, error_text

_BATCH = 64  # pieces kept before they are parsed: bounds the memory of a long answer
_BLANK = b"\r\n\r\n"
_SHORT = len(b"0\r\n\r\n")  # the last chunk, or a part of it
_LENGTH, _CHUNKED = b"content-length", b"transfer-encoding"
_STREAM = b"event-stream"
_MOST_BODY = 64 << 20  # of an answer that is not a stream
_SWITCH = 101  # to another protocol: no answer of HTTP follows


class Exchange:
    """Feed it what the connection gives until it has ``ended``; whoever sees that first calls ``done``, once.

    ``ripe`` says that ``parse`` may find the end, now or a little later: times are those of the bytes either way.
    ``error`` is None for a whole answer. ``reusable`` says that the connection may carry another exchange, ``complete``
    that no more bytes of this one are to come, ``said_done`` that [DONE] has come.
    """

    __slots__ = (
        "_body",
        "_decode",
        "_framed_by",
        "_last_ns",
        "_lazy",
        "_now",
        "_parser",
        "_part_times",
        "_parts",
        "_pieces",
        "_sse",
        "_streamed",
        "_times",
        "answer",
        "complete",
        "done",
        "ended",
        "error",
        "payload",
        "reusable",
        "ripe",
        "said_done",
        "status",
        "t_end_ns",
        "t_send_ns",
    )

    def __init__(self, payload: bytes, decode: Decode, done: Callable[["Exchange"], None]) -> None:
        self.payload, self._decode, self.done = payload, decode, done
        self.answer = Answer()
        self.status = 0
        self.ended = self.complete = self.reusable = self.said_done = self.ripe = False
        self.t_send_ns: int | None = None
        self.t_end_ns: int | None = None
        self.error: str | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._sse = SseReader()
        self._streamed = False
        self._framed_by = b""  # the header that says where the body ends; none: where the connection does
        self._lazy = False  # a stream whose end shows in its bytes, so that it need not be parsed as it comes
        self._now = self._last_ns = 0
        self._pieces: list[bytes] = []
        self._times: list[int] = []
        self._parts: list[bytes] = []  # of the body, as the parser gives them
        self._part_times: list[int] = []
        self._body = b""

    # the connection calls these

    def received(self, t_ns: int, data: bytes) -> None:
        if not self.status and not self._lazy:
            self._lazy = _opens_stream(data)  # until the head is parsed
        self._last_ns = max(t_ns, self._last_ns)  # a stamp may lie before the time of a piece that had none
        self._pieces.append(data)
        self._times.append(self._last_ns)
        if (
            len(data) <= _SHORT
            or (data.endswith(_BLANK) and _ends_message(data))
            or b"[DONE]" in data
            or b'"error"' in data
        ):
            self.ripe = True
        elif not self._lazy or len(self._pieces) >= _BATCH:
            self.parse()

    def parse(self) -> None:
        """Take in what has come; the exchange has ``ended`` if its end is there."""
        self.ripe = False
        pieces, times, self._pieces, self._times = self._pieces, self._times, [], []
        try:
            for piece, self._now in zip(pieces, times, strict=True):
                self._parser.feed_data(piece)
                if self.complete:
                    break
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._take_in()
            if not self.complete:
                self.end(f"malformed: HTTP: {error.__context__ or error}", self._now)
                return
            self.reusable = False  # the answer is whole; what follows it is none
        self._take_in()
        if self.complete and not self.ended:
            self._finish()

    def lost(self, t_ns: int, error: Exception | None) -> None:
        """The connection is gone: the end of an answer that has no other end, or a failure."""
        if self.ended:
            return
        self._now = t_ns
        self.parse()
        if self.ended:
            return
        if error is None and self._streamed:  # the last event may have lacked its blank line
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._take_in_rest()
        if self.said_done or (error is None and (self.answer.finish is not None or self._ends_with_connection())):
            self._finish()
            return
        how = type(error).__name__ if error is not None else "closed by the server"
        where = f"after {self.answer.seen()} chunks" if self.status else "before any answer"
        self.end(f"reset: {how} {where}")

    def end(self, error: str | None = None, t_ns: int | None = None) -> None:
        if self.ended:
            return
        self.ended, self.error, self.payload = True, error, b""
        self.t_end_ns = time.monotonic_ns() if t_ns is None else t_ns
        self._parser = None  # it holds this exchange: without the cycle nothing waits for the garbage collector

    def conclude(self) -> None:
        """[DONE] has come and the end of the message has not: take it for whole."""
        if not self.ended:
            self._finish()

    def time_out(self, after_s: float) -> None:
        self.parse_all()
        self.end(f"timeout: no end within {after_s:g} s, {self.answer.seen()} chunks came")

    def parse_all(self) -> None:
        """Take in what has come where nothing more is waited for: [DONE] is then the end."""
        self.parse()
        if self.said_done:
            self.conclude()

    def stop(self) -> None:
        """The run is over: end without a word."""
        self.ended, self._parser = True, None

    # httptools calls these

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status >= 200:
            return  # a trailer, or of the next message
        name = name.lower()
        if name == b"content-type":
            self._streamed = _STREAM in value.lower()
        elif name in (_LENGTH, _CHUNKED):
            self._framed_by = name

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        self._streamed = self._streamed and self.status == 200
        self._lazy = self._streamed and self._framed_by != _LENGTH

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._parts.append(data)
            self._part_times.append(self._now)

    def on_message_complete(self) -> None:
        if not self.complete and (self.status >= 200 or self.status == _SWITCH):  # 100 announces another head
            self.complete = True
            self.reusable = self._parser.should_keep_alive()

    # what the bytes say

    def _ends_with_connection(self) -> bool:
        """Whether an orderly close ends an answer that is no stream; what came of an error's page will do."""
        return self.status >= 200 and not self._streamed and (self.status != 200 or not self._framed_by)

    def _take_in(self) -> None:
        if self.ended or not self._parts:
            return
        parts, times, self._parts, self._part_times = self._parts, self._part_times, [], []
        if not self._streamed:
            self._body += b"".join(parts)
            if len(self._body) > _MOST_BODY:
                self.end(f"malformed: a body of more than {_MOST_BODY >> 20} MiB that is no stream", self._now)
            return
        self._add(*self._sse.feed(parts, times))

    def _add(self, payloads: list[bytes], times: list[int]) -> None:
        done = bool(payloads) and payloads[-1].startswith(b"[DONE]")
        if done:
            payloads.pop()
        try:
            events = self._decode(payloads) if payloads else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._add_singly(payloads, times)
            return
        for event, t_ns in zip(events, times, strict=False):
            self.answer.add(t_ns, event)
        if self.answer.error is not None:
            self.end(f"stream_error: {self.answer.error}", times[-1])
        elif done:
            self.answer.finish = self.answer.finish or "done"
            self.said_done = True  # what is left is the end of the HTTP message, in these bytes or the next

    def _add_singly(self, payloads: list[bytes], times: list[int]) -> None:
        """One of them is not what it should be: keep what came before it."""
        for payload, t_ns in zip(payloads, times, strict=False):
            try:
                self.answer.add(t_ns, self._decode([payload])[0])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self.end(f"malformed: {error}", t_ns)
                return
            if self.answer.error is not None:
                self.end(f"stream_error: {self.answer.error}", t_ns)
                return

    def _take_in_rest(self) -> None:
        for payload in self._sse.rest():
            if payload.startswith(b"[DONE]"):
                self.answer.finish = self.answer.finish or "done"
            else:
                self.answer.add(self._now, self._decode([payload])[0])

    def _finish(self) -> None:
        """The whole answer is here: say what it was."""
        answer = self.answer
        if self.status != 200:
            self.end(f"http_{self.status}: {error_text(self._body)}", self._now)
            return
        try:
            if self._streamed:
                self._take_in_rest()
            else:
                self.answer.add(self._now, self._decode([self._body])[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.end(f"malformed: {error}", self._now)
            return
        if answer.finish is None and answer.error is None:
            self.end(f"short: the stream ended after {answer.seen()} chunks without a finish", self._now)
        elif answer.error is not None:
            self.end(f"stream_error: {answer.error}", self._now)
        elif answer.seen() == 0:
            self.end(f"short: the answer held no token (finish {answer.finish})", self._now)
        else:
            self.end(None, self._now)


def _opens_stream(piece: bytes) -> bool:
    """Whether a piece begins with the whole head of a stream whose end does not depend on a count of bytes."""
    head, blank, _ = piece.partition(_BLANK)
    if not blank or not head.startswith(b"HTTP/1.") or head[8:12] != b" 200":
        return False
    head = head.lower()
    return _STREAM in head and _LENGTH not in head


def _ends_message(piece: bytes) -> bool:
    """Whether a chunked message may end with this blank line; its last chunk may have extensions, trailers after it.

    Events whose own lines end in \\r\\n are told from that by the \\n before the last blank line.
    """
    return not piece.endswith(b"\n" + _BLANK)
