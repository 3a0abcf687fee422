"""Traces on disk as they end, so that a run that is killed can still be read: JSON lines, gzip, flushed each second."""

import queue
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from powerband.records.errors import MachineError, RequestError
from powerband.records.request import RequestTrace

_GZIP = 31  # zlib's window bits for a gzip stream
_BATCH = 64  # traces encoded in one go: the event loop's thread waits no longer than that for the interpreter
_FLUSH_S = 1.0
_READ_BYTES = 1 << 20


class TraceLog:
    """``add`` hands a trace to a thread that encodes, compresses and writes it; at most a second's worth is lost."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        except OSError as error:
            raise MachineError(f"cannot write {path}: {error.strerror}", hint="choose another --home") from error
        self._queue: queue.SimpleQueue[RequestTrace | None] = queue.SimpleQueue()
        self._failed: OSError | None = None
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def add(self, trace: RequestTrace) -> None:
        self._queue.put(trace)

    def close(self) -> None:
        """Write what is left; raises MachineError where the disk failed meanwhile."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()
        if self._failed is not None:
            raise MachineError(f"the trace log could not be written: {self._failed.strerror}", hint="is the disk full?")

    def _write_all(self) -> None:
        encoder, packer = msgspec.json.Encoder(), zlib.compressobj(1, zlib.DEFLATED, _GZIP)
        ended = False
        while not ended:
            batch, ended = self._take()
            packed = packer.compress(b"".join(encoder.encode(trace) + b"\n" for trace in batch))
            packed += packer.flush(zlib.Z_FINISH if ended else zlib.Z_SYNC_FLUSH)
            try:
                self._file.write(packed)
                self._file.flush()
            except OSError as error:
                self._failed = error
                return

    def _take(self) -> tuple[list[RequestTrace], bool]:
        """What comes within a second, and whether it was the last."""
        batch: list[RequestTrace] = []
        try:
            while len(batch) < _BATCH:
                trace = self._queue.get(timeout=_FLUSH_S)
                if trace is None:
                    return batch, True
                batch.append(trace)
        except queue.Empty:
            pass
        return batch, False


def read_traces(path: Path) -> Iterator[RequestTrace]:
    """The traces of a log, whole or cut off; RequestError where what is there is no trace log."""
    decoder = msgspec.json.Decoder(RequestTrace)
    read = 0
    try:
        for line in _lines(path):
            yield decoder.decode(line)
            read += 1
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}", hint="a trace log ends in .jsonl.gz") from error
    except (zlib.error, msgspec.DecodeError) as error:
        raise RequestError(f"{path} is no trace log (line {read + 1}): {error}", hint="is it the right file?") from None


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines; a last one that was cut is left out."""
    unpacker = zlib.decompressobj(_GZIP)
    tail = b""
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            tail += unpacker.decompress(data)
            *lines, tail = tail.split(b"\n")
            yield from lines
