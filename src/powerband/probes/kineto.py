"""Read a torch.profiler trace (Kineto; CUDA or ROCm) into the timeline of its busiest device."""

import gc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerband.probes.timeline_build import Work, build_timeline
from powerband.probes.trace_columns import Columns, Index, correlations, read_times, thread_name
from powerband.probes.trace_events import Args, Event, read_events
from powerband.records.errors import RequestError
from powerband.records.timeline import COMMUNICATION, COPY, KERNEL, MEMSET, Ints, Timeline

# Old traces capitalise the categories.
_WORK = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": COPY,
    "Memcpy": COPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
}
_HOST = {
    "cuda_runtime": "calls",
    "cuda_driver": "calls",
    "hip_runtime": "calls",
    "Runtime": "calls",
    "cpu_op": "ops",
    "Operator": "ops",
    "user_annotation": "marks",
    "python_function": "python",
}
_COMMUNICATION = re.compile("nccl|rccl|oneccl|all_reduce|allreduce|all_gather|cross_device")
# Host functions that wait for something else than the device.
_WAITING = re.compile(r"sleep|select|poll|acquire|wait|recv|queue\.py|accept")
_LOADING = ("enumerate(DataLoader)", "DataLoader", "dataloader.py")
# Beyond these the columns need more than a gigabyte; device work is looked at in many more columns than the rest.
_MAX_EVENTS, _MAX_WORK = 20_000_000, 5_000_000
_MAX_DULL = 200_000
_NO_ARGS = Args()


@dataclass(slots=True)
class _Reading:
    """What is gathered while the events pass by; the numbers beside the columns say what ``extra`` holds."""

    work: Columns = field(default_factory=Columns)  # correlation, kind, device
    calls: Columns = field(default_factory=Columns)  # correlation
    ops: Columns = field(default_factory=Columns)
    waits: Columns = field(default_factory=Columns)
    loads: Columns = field(default_factory=Columns)
    marks: Columns = field(default_factory=Columns)
    names: Index = field(default_factory=Index)
    threads: Index = field(default_factory=Index)
    device_names: Index = field(default_factory=Index)
    dull: set[str] = field(default_factory=set)  # names of Python frames that say nothing
    meanings: dict[int, str] = field(default_factory=dict)  # what a name says about its event, by index of the name
    odd: Counter[str] = field(default_factory=Counter)
    total: int = 0
    pieces_of_work: int = 0


def read_kineto(path: Path) -> Timeline:
    """The timeline of the device with the most work in the trace at ``path``.

    Raises RequestError (one line and a hint) where the file is missing, damaged, no trace, or holds no device work.
    """
    reading = _Reading()
    with _no_collection():
        for events in read_events(path):
            reading.total += len(events)
            if reading.total > _MAX_EVENTS:
                raise RequestError(
                    f"{path.name} holds more than {_MAX_EVENTS:,} events",
                    hint="record fewer steps, or without Python stacks",
                )
            _take_block(reading, events)
            if reading.pieces_of_work > _MAX_WORK:
                raise RequestError(
                    f"{path.name} holds more than {_MAX_WORK:,} pieces of device work", hint="record fewer steps"
                )
    if reading.work.empty:
        raise RequestError(
            f"{path.name} holds no GPU events in {reading.total} events",
            hint="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    return _build(reading, path.name)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Events hold no cycles: looking for some among millions of them took a seventh of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _take_block(reading: _Reading, events: Sequence[Event]) -> None:
    """Sort a block by category and take each group at once: per event only what must be done per event."""
    groups: dict[Any, list[Event]] = {category: [] for category in (*_WORK, *_HOST)}
    find = groups.get
    for event in events:
        try:
            group = find(event.cat)
        except TypeError:  # a list or an object where a category should be
            continue
        if group is not None and event.ph == "X":
            group.append(event)
    groups["python_function"] = _telling(reading, groups["python_function"])
    for category, group in groups.items():
        if not group:
            continue
        start, end, kept = read_times(group, reading.odd)
        if not kept.size:
            continue
        rows = group if kept.size == len(group) else [group[k] for k in kept.tolist()]
        names = reading.names.of_all([event.name for event in rows])
        if category in _WORK:
            _take_work(reading, rows, _WORK[category], start, end, names)
        else:
            _take_host(reading, rows, _HOST[category], start, end, names)


def _telling(reading: _Reading, frames: list[Event]) -> list[Event]:
    """The Python frames that are not known to say nothing: most of a trace with stacks is such frames."""
    try:
        return [frame for frame in frames if frame.name not in reading.dull]
    except TypeError:  # a name that is no text
        return frames


def _take_work(reading: _Reading, rows: list[Event], kind: int, start: Ints, end: Ints, names: Ints) -> None:
    args = [event.args or _NO_ARGS for event in rows]
    devices, streams = [each.device for each in args], [each.stream for each in args]
    if {*map(type, devices), *map(type, streams)} != {int}:  # then the process is the device and the thread the stream
        pairs = [*zip(devices, streams, rows, strict=True)]
        devices = [device if isinstance(device, int) else str(event.pid) for device, _, event in pairs]
        streams = [stream if isinstance(stream, int) else str(event.tid) for _, stream, event in pairs]
    kinds = np.full(len(rows), kind, dtype=np.int64)
    if kind == KERNEL:
        for name, meaning in _meanings(reading, rows, names).items():
            if meaning == "communication":
                kinds[names == name] = COMMUNICATION
    reading.pieces_of_work += len(rows)
    lanes = reading.threads.of_all(["gpu"] * len(rows), devices, streams)
    ids = correlations([each.correlation for each in args])
    reading.work.add(start, end, lanes, names, ids, kinds, reading.device_names.of_all(devices))


def _take_host(reading: _Reading, rows: list[Event], group: str, start: Ints, end: Ints, names: Ints) -> None:
    threads = reading.threads.of_all([event.pid for event in rows], [event.tid for event in rows])
    if group == "calls":
        ids = correlations([(event.args or _NO_ARGS).correlation for event in rows])
        reading.calls.add(start, end, threads, names, ids)
        return
    meanings = _meanings(reading, rows, names)
    if group == "python" and len(reading.dull) < _MAX_DULL:
        reading.dull |= {
            event.name
            for event, name in zip(rows, names.tolist(), strict=True)
            if type(event.name) is str and meanings[name] not in ("load", "wait")
        }
    # Python frames are kept only where they say what the host waits for.
    targets = {"load": reading.loads, "wait": reading.waits if group == "python" else reading.ops}
    usual = {"python": None, "marks": reading.marks, "ops": reading.ops}[group]
    said = {*meanings.values()}
    for meaning in said:
        target = reading.marks if meaning == "step" and group != "python" else targets.get(meaning, usual)
        if target is None:
            continue
        chosen: NDArray[np.bool_] | slice = slice(None)
        if len(said) > 1:
            chosen = np.isin(names, [name for name, one in meanings.items() if one == meaning])
        target.add(start[chosen], end[chosen], threads[chosen], names[chosen])


def _meanings(reading: _Reading, rows: list[Event], names: Ints) -> dict[int, str]:
    """What each name that occurs says about its event; a name is looked at once."""
    example = np.zeros(int(names.max()) + 1, dtype=np.int64)
    example[names] = np.arange(names.size)
    found = {}
    for number in np.flatnonzero(np.bincount(names)).tolist():
        if number not in reading.meanings:
            reading.meanings[number] = _meaning(str(rows[example[number]].name))
        found[number] = reading.meanings[number]
    return found


def _meaning(name: str) -> str:
    lowered = name[:160].lower()
    if _COMMUNICATION.search(lowered, 0, 80):
        return "communication"
    if any(word in name for word in _LOADING):
        return "load"
    if name.startswith("ProfilerStep"):
        return "step"
    return "wait" if _WAITING.search(lowered) and "nn.module" not in lowered else ""


def _build(reading: _Reading, source: str) -> Timeline:
    return build_timeline(
        source,
        Work(*reading.work.table()),
        reading.calls,
        device_names=reading.device_names.texts(),
        ops=reading.ops,
        waits=reading.waits,
        loads=reading.loads,
        marks=reading.marks,
        names=reading.names.texts(),
        threads=reading.threads.texts(thread_name),
        notes=[f"{count} events {what} were left out" for what, count in reading.odd.items()],
    )
