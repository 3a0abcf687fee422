"""The events of a Chrome/Kineto trace, a block at a time: a trace of any size in bounded memory.

A block of the file is cut at the last place that looks like the end of an event and decoded in one go; a cut inside a
string or a nested list makes the decoder refuse, and the place before is tried.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from powerband.records.errors import RequestError, in_words

# Larger blocks leave the processor's cache: at 4 MiB reading took a third longer.
_BLOCK_BYTES = 2 << 20
_PIECE_BYTES = 128 << 10  # what is read of the header, or unpacked, at a time
_CLOSING = ord("]")
# A single event is a few hundred bytes, with a deep call stack some 100 kB.
_MAX_EVENT_BYTES = 16 << 20
_MAX_HEADER_BYTES = 16 << 20
# Places to cut that are tried before more of the file is read: nested lists of objects are rare in traces.
_MAX_CUTS = 32
_CUT = re.compile(rb"\}\s*,\s*\{")
_CUT_WINDOW_BYTES = 64 << 10
_KEY = b'"traceEvents"'
_SPACE = b" \t\r\n"
_HINT = "accepted: a trace written by torch.profiler (.json or .json.gz), with a traceEvents list"


class Args(msgspec.Struct, gc=False):
    """The arguments that device work and host calls are asked for."""

    correlation: Any = None
    device: Any = None
    stream: Any = None


class Event(msgspec.Struct, gc=False):
    """The fields that are used; the decoder skips all others."""

    ph: str = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


_BLOCK: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[Event], strict=False)


def read_events(path: Path) -> Iterator[list[Event]]:
    """Blocks of events in the order of the file.

    Raises RequestError with one line where the file is missing, no trace, damaged or cut off.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.open(raw, "rb") as file:
                    yield from _blocks(file, path.name)  # type: ignore[arg-type]
            else:
                yield from _blocks(raw, path.name)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise RequestError(
            f"{path.name} is cut off or damaged: its compressed data ends or breaks", hint="copy or record it again"
        ) from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}", hint=_HINT) from None


def _blocks(file: BinaryIO, name: str) -> Iterator[list[Event]]:
    held = _Held(file, _skip_header(file, name))
    seen = 0
    while True:
        more = held.fill()
        if events := held.take():
            seen += len(events)
            yield events
        if held.size > _MAX_EVENT_BYTES:
            raise RequestError(f"{name} holds no readable event after the first {seen}", hint=_HINT)
        if not more:
            break
    yield _last(held.rest(), name, seen)


def _skip_header(file: BinaryIO, name: str) -> bytes:
    """Read up to the opening bracket of the list of events; what follows it is returned."""
    head = b""
    while len(head) <= _MAX_HEADER_BYTES:
        block = file.read(min(_PIECE_BYTES, _BLOCK_BYTES))
        head += block
        stripped = head.lstrip(_SPACE + b"\xef\xbb\xbf")
        if stripped.startswith(b"["):
            return stripped[1:]
        if stripped and not stripped.startswith(b"{"):
            raise RequestError(f"{name} is not JSON: it starts with {_shown(stripped[:12])}", hint=_HINT)
        place = head.find(_KEY)
        if place >= 0:
            rest = head[place + len(_KEY) :].lstrip(_SPACE)
            if rest.startswith(b":") and rest[1:].lstrip(_SPACE).startswith(b"["):
                return rest[1:].lstrip(_SPACE)[1:]
            if len(rest) > 64:
                raise RequestError(f"{name}: traceEvents is not a list", hint=_HINT)
        if not block:
            break
    what = "is empty" if not head.strip() else "holds no traceEvents"
    of_nsys = name.endswith((".sqlite", ".db"))
    raise RequestError(f"{name} {what}", hint="export it again: nsys export --type sqlite FILE" if of_nsys else _HINT)


def _shown(start: bytes) -> str:
    """Text as text, else its bytes in hexadecimal."""
    text = start.decode("ascii", errors="replace")
    return f'"{text}"' if text.isprintable() and "\ufffd" not in text else f"the bytes {start.hex(' ')}"


class _Held:
    """The text in memory that is not decoded yet, behind an opening bracket.

    Always the same bytes: pages fresh from the system for every block cost as much time as decoding it.
    """

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        self._file, self._end = file, 1 + len(head)
        self._bytes = bytearray(b"[" + head)

    @property
    def size(self) -> int:
        return self._end

    def fill(self) -> bool:
        """Read another block; False at the end of the file."""
        until = self._end + _BLOCK_BYTES
        if len(self._bytes) <= until:
            before, self._bytes = self._bytes, bytearray(until + _BLOCK_BYTES)
            self._bytes[: self._end] = before[: self._end]
        view = memoryview(self._bytes)
        while self._end < until:
            count = self._file.readinto(view[self._end : min(self._end + _PIECE_BYTES, until)])  # type: ignore[attr-defined]
            if not count:
                return False
            self._end += count
        return True

    def take(self) -> list[Event]:
        """All whole events, which are given up."""
        for window in (_CUT_WINDOW_BYTES, self._end):
            found = _CUT.finditer(self._bytes, max(self._end - window, 0), self._end)
            for cut in reversed([match.start() + 1 for match in found][-_MAX_CUTS:]):
                events = self._decode(cut)
                if events is not None:
                    rest = bytes(self._bytes[cut : self._end]).lstrip(_SPACE + b",")
                    self._end = 1 + len(rest)
                    self._bytes[1 : self._end] = rest
                    return events
            if window >= self._end:
                break
        return []

    def _decode(self, cut: int) -> list[Event] | None:
        """With a closing bracket in place of what follows the event, a comma or a space."""
        follows, self._bytes[cut] = self._bytes[cut], _CLOSING
        try:
            return _decode(memoryview(self._bytes)[: cut + 1])
        finally:
            self._bytes[cut] = follows

    def rest(self) -> bytes:
        return bytes(self._bytes[1 : self._end])


def _decode(text: memoryview) -> list[Event] | None:
    """Events of a whole number of objects; None where it is not one. NaN and Infinity are read, as Kineto writes them.

    What the fast decoder refuses for another reason than a wrong cut is given to the lenient one.
    """
    try:
        return _BLOCK.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "truncated" in str(error) or "trailing" in str(error):
            return None
    except RecursionError:
        return None
    try:
        rows = json.loads(bytes(text).decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return [_event_of(row) for row in rows if isinstance(row, dict)]


def _event_of(row: dict[str, Any]) -> Event:
    args = row.get("args")
    if not isinstance(args, dict):
        args = {}
    phase = row.get("ph")
    return Event(
        ph=phase if isinstance(phase, str) else "",
        cat=row.get("cat"),
        name=row.get("name"),
        pid=row.get("pid"),
        tid=row.get("tid"),
        ts=row.get("ts"),
        dur=row.get("dur"),
        args=Args(args.get("correlation"), args.get("device"), args.get("stream")),
    )


def _last(buffer: bytes, name: str, seen: int) -> list[Event]:
    """What is left up to the closing bracket of the list; keys after it are not needed."""
    text = buffer.decode("utf-8", errors="replace")
    try:
        rows, _ = json.JSONDecoder(strict=False).raw_decode("[" + text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else in_words(error)
        raise RequestError(
            f"{name} is cut off or damaged after {seen} whole events: {reason}", hint="copy or record it again"
        ) from None
    return [_event_of(row) for row in rows if isinstance(row, dict)]
