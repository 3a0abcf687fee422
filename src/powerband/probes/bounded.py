"""Reading headers that may lie: every length is checked against the file before a byte is read or kept."""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from powerband.records.errors import RequestError

_CHUNK = 1 << 18


class BoundedReader:
    """Little-endian values from the front of a file, at most ``limit`` bytes of it.

    Raises RequestError where a length points past the end of the file or past ``limit``.
    """

    def __init__(self, path: Path, handle: BinaryIO, limit: int) -> None:
        self._path = path
        self._handle = handle
        self.file_size = path.stat().st_size
        self._limit = min(limit, self.file_size)
        self._buffer = b""
        self._start = 0  # file offset of the buffer
        self._at = 0  # within the buffer

    @property
    def position(self) -> int:
        return self._start + self._at

    def need(self, count: int, what: str) -> None:
        """Refuse unless ``count`` more bytes may be read, before anything is allocated for them."""
        left = self._limit - self.position
        if count > left:
            raise self.refuse(f"its header claims {count} bytes for {what}, {left} are left")

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        if self._at + count > len(self._buffer):
            self._fill(count)
        chunk = self._buffer[self._at : self._at + count]
        if len(chunk) < count:
            raise self.refuse(f"it ends inside {what}")
        self._at += count
        return chunk

    def unpack(self, form: struct.Struct, what: str) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size, what))

    def skip(self, count: int, what: str) -> None:
        self.need(count, what)
        if self._at + count <= len(self._buffer):
            self._at += count
            return
        self._start, self._at, self._buffer = self.position + count, 0, b""
        self._handle.seek(self._start)

    def skip_strings(self, count: int, what: str) -> None:
        """Step over ``count`` strings, each a 64-bit length and its bytes; a vocabulary holds hundreds of thousands."""
        self.need(8 * count, what)
        while count:
            buffer, at, end = self._buffer, self._at, len(self._buffer) - 8
            while count and at <= end:
                after = at + 8 + int.from_bytes(buffer[at : at + 8], "little")
                if after > len(buffer):
                    break
                at, count = after, count - 1
            self._at = at
            if count:  # the next string is not whole in the buffer
                (length,) = struct.unpack("<Q", self.take(8, what))
                self.skip(length, what)
                count -= 1

    def refuse(self, reason: str) -> RequestError:
        return RequestError(
            f"cannot read {self._path}: {reason}", hint="is the download complete? compare its size or checksum"
        )

    def _fill(self, count: int) -> None:
        rest = self._buffer[self._at :]
        self._start, self._at = self.position, 0
        self._buffer = rest + self._handle.read(max(count - len(rest), _CHUNK))
