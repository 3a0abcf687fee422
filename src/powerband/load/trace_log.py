"""Traces on disk as they end, so that a run needs no memory for them and can be read after a kill: JSON lines, gzip."""

import shutil
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from powerband.records.errors import MachineError, RequestError
from powerband.records.request import RequestTrace

_GZIP = 31  # zlib's window bits for a gzip stream
_BATCH = 16  # traces encoded in one go: the event loop's thread waits no longer than that for the interpreter
_LOOK_S = 0.02  # little and often: what is saved up for half a second holds up 1 % of the requests by 10 ms
_FLUSH_S = 0.5
_READ_BYTES = 1 << 18
_UNUSABLE = "its evidence cannot be used"


class TraceLog:
    """``add`` leaves a trace to a thread that encodes, compresses and writes; twice a second what came is flushed."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        except OSError as error:
            raise MachineError(f"cannot write {path}: {error.strerror}", hint="choose another --home") from error
        self._waiting: list[RequestTrace] = []
        self._over = threading.Event()
        self._failed: OSError | None = None
        self._thread = threading.Thread(target=self._write_all, name="powerband-trace-log", daemon=True)
        self._thread.start()

    def add(self, trace: RequestTrace) -> None:
        self._waiting.append(trace)  # no lock and no wake-up: the thread looks by itself

    def close(self) -> None:
        """Write what is left; raises MachineError where the disk failed meanwhile."""
        self._over.set()
        self._thread.join()
        try:
            self._file.close()  # which tries once more to write what did not go
        except OSError as error:
            self._failed = self._failed or error
        if self._failed is not None:
            raise MachineError(f"the trace log could not be written: {self._failed.strerror}", hint="is the disk full?")

    def _write_all(self) -> None:
        encoder, packer = msgspec.json.Encoder(), zlib.compressobj(1, zlib.DEFLATED, _GZIP)
        ended, unflushed, flush_s = False, False, time.monotonic() + _FLUSH_S
        while not ended:
            ended = self._over.wait(_LOOK_S)
            traces, self._waiting = self._waiting, []
            if self._failed is not None:
                continue  # the disk is full; what comes is let go, so that memory is not next
            unflushed |= bool(traces)
            try:
                for first in range(0, len(traces), _BATCH):
                    self._file.write(packer.compress(encoder.encode_lines(traces[first : first + _BATCH])))
                if ended or (unflushed and time.monotonic() >= flush_s):
                    self._file.write(packer.flush(zlib.Z_FINISH if ended else zlib.Z_SYNC_FLUSH))
                    self._file.flush()
                    unflushed, flush_s = False, time.monotonic() + _FLUSH_S
            except OSError as error:
                self._failed = error


def part_log(log: Path, share: int) -> Path:
    """Where one client process writes while the run goes on."""
    return log.with_name(f"{log.name}.{share}")


def join_logs(parts: Sequence[Path], whole: Path) -> None:
    """One log of several, by their bytes alone: gzip streams in a row are a gzip stream. ``whole`` is new or none."""
    try:
        if len(parts) == 1:
            parts[0].replace(whole)
            return
        partial = whole.with_name(whole.name + ".joined")
        with partial.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, out, _READ_BYTES)
        partial.replace(whole)
        for part in parts:
            part.unlink()
    except OSError as error:
        raise MachineError(f"cannot write {whole}: {error.strerror}", hint="is the disk full?") from error


def read_traces(path: Path, *, whole: bool = False) -> Iterator[RequestTrace]:
    """The traces of a log, whole or cut off; RequestError where what is there is no trace log.

    ``whole`` is for the log of a run that came to its end: one that was cut off is then refused as damaged.
    """
    decoder = msgspec.json.Decoder(RequestTrace)
    read = 0
    try:
        for line in _lines(path, whole):
            yield decoder.decode(line)
            read += 1
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}", hint="a trace log ends in .jsonl.gz") from error
    except (zlib.error, msgspec.DecodeError) as error:
        raise RequestError(f"{path} is no trace log (line {read + 1}): {error}", hint="is it the right file?") from None


def _lines(path: Path, whole: bool) -> Iterator[bytes]:
    """Whole lines; a last one that was cut is left out."""
    tail = b""
    for data in _unpacked(path, whole):
        *lines, tail = (tail + data).split(b"\n")
        yield from lines


def _unpacked(path: Path, whole: bool) -> Iterator[bytes]:
    """The bytes of one gzip stream or several in a row, the last of which may be cut off unless ``whole``."""
    unpacker, ended = zlib.decompressobj(_GZIP), False
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            while data:
                yield unpacker.decompress(data)
                data, ended = unpacker.unused_data, unpacker.eof
                if ended:
                    unpacker = zlib.decompressobj(_GZIP)
    if whole and not ended:
        raise RequestError(f"the run in {path.parent} is damaged: {path.name} was cut off", hint=_UNUSABLE)
