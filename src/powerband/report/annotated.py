"""A trace with what the device waited for written into it, for Perfetto or chrome://tracing; and folded stacks."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerband.records.timeline import COMMUNICATION, COPY, MEMSET, Ints, Spans, Timeline

_KINDS = {COMMUNICATION: "communication", COPY: "copies", MEMSET: "copies"}
_BLOCK = 10_000
# Processes of the written trace, in the order in which a viewer shows them.
_WAITS, _DEVICE, _HOST, _MARKS = 1, 2, 3, 4
_TITLES = {_WAITS: "what the device waits for", _DEVICE: "device", _HOST: "host calls", _MARKS: "steps and ranges"}


def write_annotated(
    path: Path, timeline: Timeline, gap_start_ns: Ints, gap_end_ns: Ints, parts: Mapping[str, NDArray[np.float64]]
) -> int:
    """Write device work, host calls, ranges and every gap, named by what most of it was; the number of events.

    A name that ends in .gz is compressed. Times are in microseconds from the first piece of device work.
    """
    count = 0
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", compresslevel=4) if packed else path.open("w") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        block: list[str] = []
        for event in _events(timeline, gap_start_ns, gap_end_ns, parts):
            block.append(json.dumps(event))
            count += 1
            if len(block) == _BLOCK:
                file.write(",\n".join(block) + ",\n")
                block.clear()
        file.write(",\n".join([*block, json.dumps({"ph": "M", "name": "end", "pid": 0})]) + "\n]}\n")
    return count


def _events(
    timeline: Timeline, gap_start_ns: Ints, gap_end_ns: Ints, parts: Mapping[str, NDArray[np.float64]]
) -> Iterator[dict[str, Any]]:
    for process, title in _TITLES.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    names = list(parts)
    table = np.stack([parts[name] for name in names]) if names else np.zeros((0, 0))
    largest = table.argmax(axis=0) if table.size else np.zeros(0, dtype=np.int64)
    for k, (start, end) in enumerate(zip(gap_start_ns.tolist(), gap_end_ns.tolist(), strict=True)):
        shares = {name: round(float(table[n, k]) / 1e3, 3) for n, name in enumerate(names) if table[n, k] > 0}
        yield _slice(names[int(largest[k])], start, end, _WAITS, 0, {"us": shares})
    work = zip(
        timeline.work_name.tolist(), timeline.work_start_ns.tolist(), timeline.work_end_ns.tolist(),
        timeline.work_stream.tolist(), strict=True,
    )  # fmt: skip
    for name, start, end, stream in work:
        yield _slice(timeline.name_of(name), start, end, _DEVICE, stream)
    for process, spans in ((_HOST, timeline.calls), (_MARKS, timeline.marks)):
        yield from _spans(timeline, spans, process)


def _spans(timeline: Timeline, spans: Spans, process: int) -> Iterator[dict[str, Any]]:
    columns = (spans.name.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), spans.thread.tolist())
    for name, start, end, thread in zip(*columns, strict=True):
        yield _slice(timeline.name_of(name), start, end, process, thread)


def _slice(
    name: str, start: int, end: int, process: int, thread: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "ts": start / 1e3, "dur": (end - start) / 1e3, "pid": process, "tid": thread}
    return event if args is None else {**event, "args": args}


def write_folded(path: Path, timeline: Timeline, parts: Mapping[str, NDArray[np.float64]]) -> None:
    """One line a stack and its nanoseconds, as flamegraph.pl and speedscope read: work by kernel, gaps by part."""
    spent = (timeline.work_end_ns - timeline.work_start_ns).astype(float)
    stacks: Counter[str] = Counter()
    for kind in np.unique(timeline.work_kind).tolist():
        mine = timeline.work_kind == kind
        sums = np.bincount(timeline.work_name[mine], weights=spent[mine])
        for index in np.flatnonzero(sums).tolist():
            frame = timeline.name_of(index).replace(";", ",").replace("\n", " ")
            stacks[f"device;{_KINDS.get(kind, 'kernels')};{frame}"] += round(float(sums[index]))
    for name, values in parts.items():
        stacks[f"idle;{name}"] = round(float(values.sum()))
    path.write_text("".join(f"{stack} {ns}\n" for stack, ns in stacks.most_common() if ns > 0), encoding="utf-8")
