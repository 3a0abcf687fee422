"""From columns of any profiler to the timeline of its busiest device: launches matched, clocks checked."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerband.probes.trace_columns import Columns
from powerband.records.timeline import Ints, Spans, Timeline
from powerband.records.units import percent

# Device and host clocks are aligned by the profiler to some microseconds.
_CLOCK_SLACK_NS = 1_000_000
_MAX_EARLY = 0.05


@dataclass(frozen=True, slots=True)
class Work:
    """Device work sorted by start; ``correlation`` is that of the host call that launched it, -1 where unknown."""

    start_ns: Ints
    end_ns: Ints
    stream: Ints
    name: Ints
    correlation: Ints
    kind: Ints
    device: Ints


def build_timeline(
    source: str,
    work: Work,
    calls: Columns,
    *,
    device_names: tuple[str, ...],
    ops: Columns,
    waits: Columns,
    loads: Columns,
    marks: Columns,
    names: tuple[str, ...],
    threads: tuple[str, ...],
    notes: list[str],
) -> Timeline:
    """The device with the most work; ``calls`` carry their correlation id as the extra number."""
    busiest = int(np.argmax(np.bincount(work.device, weights=(work.end_ns - work.start_ns).astype(float))))
    mine = work.device == busiest
    chosen: NDArray[np.bool_] | slice = mine
    if mine.all():
        chosen = slice(None)  # views: a large trace does not stand twice in memory
    else:
        devices = np.count_nonzero(np.bincount(work.device))
        notes.append(
            f"the trace holds {devices} devices; this is the one with the most work, "
            f"{np.count_nonzero(mine)} of {mine.size} pieces"
        )
    zero_ns = int(work.start_ns[chosen][0])
    call_start, call_end, call_thread, call_name, call_id = calls.table()
    call_spans = Spans(call_start - zero_ns, call_end - zero_ns, call_thread, call_name)
    start = work.start_ns[chosen] - zero_ns
    launch, doubts = check_launches(start, call_spans, match_launches(work.correlation[chosen], call_id))
    return Timeline(
        source=source,
        device=device_names[busiest],
        work_start_ns=start,
        work_end_ns=work.end_ns[chosen] - zero_ns,
        work_stream=work.stream[chosen],
        work_kind=work.kind[chosen],
        work_name=work.name[chosen],
        work_launch=launch,
        calls=call_spans,
        ops=ops.spans(zero_ns),
        waits=waits.spans(zero_ns),
        loads=loads.spans(zero_ns),
        marks=marks.spans(zero_ns),
        names=names,
        threads=threads,
        notes=(*notes, *doubts),
    )


def check_launches(start: Ints, calls: Spans, launch: Ints) -> tuple[Ints, list[str]]:
    """The launches, or none of them where the host's clock and the device's disagree; and what must be said."""
    doubts = []
    known = launch >= 0
    if known.any():
        early = float((start[known] < calls.start_ns[launch[known]] - _CLOCK_SLACK_NS).mean())
        if early > _MAX_EARLY:
            doubts.append(
                f"{percent(early)} of the device work starts before its launch: two clocks; launches are not used"
            )
            return np.full_like(launch, -1), doubts
    if (share := float((~known).mean())) > _MAX_EARLY:
        doubts.append(f"{percent(share)} of the device work has no launch in the trace")
    return launch, doubts


def match_launches(work: Ints, calls: Ints) -> Ints:
    """For each piece of work the index of the call with its correlation id, or -1; the last call where ids repeat."""
    if calls.size == 0:
        return np.full(work.size, -1, dtype=np.int64)
    order = np.argsort(calls, kind="stable")
    place = np.searchsorted(calls[order], work, side="right") - 1
    found = order[np.clip(place, 0, None)]
    match = (place >= 0) & (calls[found] == work) & (work >= 0)
    return np.where(match, found, -1)
