"""Read a torch.profiler trace (Kineto; CUDA or ROCm) into the timeline of its busiest device."""

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from powerband.probes.trace_events import Event, read_events
from powerband.records.errors import RequestError
from powerband.records.timeline import COMMUNICATION, COPY, KERNEL, MEMSET, Ints, Spans, Timeline

# Old traces capitalise the categories.
_WORK = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": COPY,
    "Memcpy": COPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
}
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime"}
_OPS = {"cpu_op", "Operator"}
_MARKS = {"user_annotation"}
_PYTHON = "python_function"
_COMMUNICATION = ("nccl", "rccl", "ncclDevKernel", "oneccl", "all_reduce", "allreduce", "all_gather", "cross_device")
# Host functions that wait for something else than the device.
_WAITING = ("sleep", "select", "poll", "acquire", "wait", "recv", "queue.py", "epoll", "accept")
_LOADING = ("enumerate(DataLoader)", "DataLoader", "dataloader.py", "data_load")
# Beyond this the columns alone need more than a gigabyte.
_MAX_EVENTS = 20_000_000
_MAX_NAMES, _NAME_LENGTH = 200_000, 160
# In ns this still fits 64 bits, with room for the length.
_MAX_US = 4e15


class _Args(msgspec.Struct, gc=False):
    correlation: Any = None
    device: Any = None
    stream: Any = None


_ARGS: msgspec.json.Decoder[_Args] = msgspec.json.Decoder(_Args, strict=False)


class _Columns:
    """Intervals that grow by appending: 8 bytes a value, no object an event."""

    def __init__(self) -> None:
        self.start, self.end, self.thread, self.name, self.extra = (array("q") for _ in range(5))

    def add(self, start: int, end: int, thread: int, name: int, extra: int = 0) -> None:
        self.start.append(start)
        self.end.append(end)
        self.thread.append(thread)
        self.name.append(name)
        self.extra.append(extra)

    def table(self, keep: Ints | None = None) -> tuple[Ints, ...]:
        """The columns sorted by start; ``keep`` selects rows first."""
        columns = [np.frombuffer(column, dtype=np.int64) if column else np.zeros(0, np.int64) for column in self.all]
        if keep is not None:
            columns = [column[keep] for column in columns]
        order = np.argsort(columns[0], kind="stable")
        return tuple(column[order] for column in columns)

    @property
    def all(self) -> tuple["array[int]", ...]:
        return self.start, self.end, self.thread, self.name, self.extra

    def spans(self, zero_ns: int) -> Spans:
        start, end, thread, name, _ = self.table()
        return Spans(start - zero_ns, end - zero_ns, thread, name)


class _Index:
    """Texts as small numbers, bounded in number and length."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        key = value[:_NAME_LENGTH] if isinstance(value, str) else str(value)[:_NAME_LENGTH]
        number = self.known.get(key)
        if number is None:
            if len(self.known) >= _MAX_NAMES:
                key = "(other names)"
            number = self.known.setdefault(key, len(self.known))
        return number


@dataclass(slots=True)
class _Reading:
    """What is gathered while the events pass by."""

    work: _Columns = field(default_factory=_Columns)  # thread: index of (device, stream); extra: correlation
    kinds: "array[int]" = field(default_factory=lambda: array("q"))
    devices: "array[int]" = field(default_factory=lambda: array("q"))
    calls: _Columns = field(default_factory=_Columns)  # extra: correlation
    ops: _Columns = field(default_factory=_Columns)
    waits: _Columns = field(default_factory=_Columns)
    loads: _Columns = field(default_factory=_Columns)
    marks: _Columns = field(default_factory=_Columns)
    names: _Index = field(default_factory=_Index)
    threads: _Index = field(default_factory=_Index)
    device_names: _Index = field(default_factory=_Index)
    odd: Counter[str] = field(default_factory=Counter)
    total: int = 0


def read_kineto(path: Path) -> Timeline:
    """The timeline of the device with the most work in the trace at ``path``.

    Raises RequestError (one line and a hint) where the file is missing, damaged, no trace, or holds no device work.
    """
    reading = _Reading()
    for events in read_events(path):
        reading.total += len(events)
        if reading.total > _MAX_EVENTS:
            raise RequestError(
                f"{path.name} holds more than {_MAX_EVENTS:,} events",
                hint="record fewer steps, or without Python stacks",
            )
        for event in events:
            if event.ph == "X":
                _take_event(reading, event)
    if not reading.work.start:
        raise RequestError(
            f"{path.name} holds no GPU events in {reading.total} events",
            hint="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    return _build(reading, path.name)


def _take_event(reading: _Reading, event: Event) -> None:
    category = event.cat
    if not isinstance(category, str) or (category not in _TAKEN and category not in _WORK):
        return
    kind = _WORK.get(category)
    span = _span(reading, event)
    if span is None:
        return
    start, end = span
    name = event.name if isinstance(event.name, str) else str(event.name)
    if kind is not None:
        _take_work(reading, event, kind, name, start, end)
        return
    if category == _PYTHON:
        _take_python(reading, event, name, start, end)
        return
    thread = reading.threads.of(f"{event.pid}/{event.tid}")
    number = reading.names.of(name)
    if category in _CALLS:
        reading.calls.add(start, end, thread, number, _whole(_args(event).correlation))
        return
    if any(word in name for word in _LOADING[:2]):
        reading.loads.add(start, end, thread, number)
    elif category in _MARKS or name.startswith("ProfilerStep"):
        reading.marks.add(start, end, thread, number)
    else:
        reading.ops.add(start, end, thread, number)


_TAKEN = frozenset(_CALLS | _OPS | _MARKS | {_PYTHON})


def _take_work(reading: _Reading, event: Event, kind: int, name: str, start: int, end: int) -> None:
    args = _args(event)
    lowered = name[:80].lower()
    if kind == KERNEL and any(word in lowered for word in _COMMUNICATION):
        kind = COMMUNICATION
    device = args.device if isinstance(args.device, int) else event.pid
    stream = args.stream if isinstance(args.stream, int) else event.tid
    reading.devices.append(reading.device_names.of(device))
    reading.kinds.append(kind)
    reading.work.add(
        start,
        end,
        reading.threads.of(f"gpu {device} stream {stream}"),
        reading.names.of(name),
        _whole(args.correlation),
    )


def _take_python(reading: _Reading, event: Event, name: str, start: int, end: int) -> None:
    """Python frames are kept only where they say what the host waits for."""
    lowered = name.lower()
    thread = reading.threads.of(f"{event.pid}/{event.tid}")
    if any(word in name for word in _LOADING):
        reading.loads.add(start, end, thread, reading.names.of(name))
    elif any(word in lowered for word in _WAITING) and "nn.module" not in lowered:
        reading.waits.add(start, end, thread, reading.names.of(name))


def _span(reading: _Reading, event: Event) -> tuple[int, int] | None:
    """Start and end in ns; None (counted) for what is no time."""
    try:
        start, length = float(event.ts), float(event.dur if event.dur is not None else 0.0)
    except (TypeError, ValueError):
        reading.odd["without a readable time"] += 1
        return None
    if not (math.isfinite(start) and math.isfinite(length)) or abs(start) > _MAX_US or length > _MAX_US:
        reading.odd["with a time that is not finite or out of range"] += 1
        return None
    if length < 0:
        reading.odd["with a negative duration"] += 1
        return None
    return round(start * 1000), round((start + length) * 1000)


def _args(event: Event) -> _Args:
    try:
        return _ARGS.decode(event.args) if event.args else _Args()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Args()


def _whole(value: Any) -> int:
    """A correlation id, or -1 where there is none that fits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else -1


def _build(reading: _Reading, source: str) -> Timeline:
    notes = [f"{count} events {what} were left out" for what, count in reading.odd.items()]
    devices = np.frombuffer(reading.devices, dtype=np.int64)
    busiest, keep = _busiest(reading, devices)
    kept = np.flatnonzero(keep)
    if kept.size < devices.size:
        notes.append(
            f"the trace holds {len(set(devices.tolist()))} devices; this is the one with the most work, "
            f"{kept.size} of {devices.size} pieces"
        )
    kinds = np.frombuffer(reading.kinds, dtype=np.int64)[kept]
    start, end, stream, name, correlation = reading.work.table(kept)
    kinds = kinds[np.argsort(np.frombuffer(reading.work.start, dtype=np.int64)[kept], kind="stable")]
    zero_ns = int(start[0])
    calls, call_correlation = _calls(reading, zero_ns)
    launch = match_launches(correlation, call_correlation)
    start, end = start - zero_ns, end - zero_ns
    known = launch >= 0
    if known.any():
        early = start[known] < calls.start_ns[launch[known]] - _CLOCK_SLACK_NS
        if early.mean() > _MAX_EARLY:
            notes.append(
                f"{early.mean():.0%} of the device work starts before its launch: two clocks; launches are not used"
            )
            launch = np.full_like(launch, -1)
    if (launch < 0).mean() > _MAX_EARLY:
        notes.append(f"{(launch < 0).mean():.0%} of the device work has no launch in the trace")
    return Timeline(
        source=source,
        device=str(list(reading.device_names.known)[busiest]),
        work_start_ns=start,
        work_end_ns=end,
        work_stream=stream,
        work_kind=kinds,
        work_name=name,
        work_launch=launch,
        calls=calls,
        ops=reading.ops.spans(zero_ns),
        waits=reading.waits.spans(zero_ns),
        loads=reading.loads.spans(zero_ns),
        marks=reading.marks.spans(zero_ns),
        names=tuple(reading.names.known),
        threads=tuple(reading.threads.known),
        notes=tuple(notes),
    )


# Device and host clocks are aligned by the profiler to some microseconds.
_CLOCK_SLACK_NS = 1_000_000
_MAX_EARLY = 0.05


def _busiest(reading: _Reading, devices: Ints) -> tuple[int, "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    spent = np.frombuffer(reading.work.end, dtype=np.int64) - np.frombuffer(reading.work.start, dtype=np.int64)
    busiest = int(np.argmax(np.bincount(devices, weights=spent.astype(float))))
    return busiest, devices == busiest


def _calls(reading: _Reading, zero_ns: int) -> tuple[Spans, Ints]:
    start, end, thread, name, correlation = reading.calls.table()
    return Spans(start - zero_ns, end - zero_ns, thread, name), correlation


def match_launches(work: Ints, calls: Ints) -> Ints:
    """For each piece of work the index of the call with its correlation id, or -1; the last call where ids repeat."""
    if calls.size == 0:
        return np.full(work.size, -1, dtype=np.int64)
    order = np.argsort(calls, kind="stable")
    place = np.searchsorted(calls[order], work, side="right") - 1
    found = order[np.clip(place, 0, None)]
    match = (place >= 0) & (calls[found] == work) & (work >= 0)
    return np.where(match, found, -1)
