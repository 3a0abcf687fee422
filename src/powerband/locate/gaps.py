"""What a device waited for between two pieces of work, gap by gap, and how its busy time splits.

A gap ends when the next piece of work starts. If that work had been launched before the gap began, it was queued and
waited for other work or an event; if not, the device waited for the host, and what the launching thread did in that
time says for what: an input pipeline, a synchronising call, framework and Python code, or nothing at all.
"""

from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Flags, Floats, Ints
from powerband.records.finding import Share
from powerband.records.timeline import COMMUNICATION, COPY, Spans, Timeline

# A kernel starts some microseconds after its launch; beyond this it was not the launch that it waited for.
_LAUNCH_LATENCY_NS = 100_000
# Queued kernels follow each other within this; it is the device's own handover and nothing that a host could hasten.
_HANDOVER_NS = 20_000
# A gap this long in which the host recorded next to nothing is no overhead between operators: nothing was asked of it.
_LONG_NS = 1_000_000
_ACTIVE = 0.1
_SYNCS = ("Synchronize", "cudaMemcpy", "hipMemcpy")  # blocking copies carry no Async in their names


@dataclass(frozen=True, slots=True)
class Busy:
    """The union over streams in ns, split by what nothing else hid; the window is first to last piece of work."""

    window_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    communication_ns: int
    copy_ns: int

    @property
    def busy_ns(self) -> int:
        return self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps as columns in ns: bounds, the work that ends each, and the seconds by what was waited for (they sum)."""

    start_ns: Ints
    end_ns: Ints
    next_work: Ints
    parts: dict[str, Floats]

    @property
    def size(self) -> int:
        return int(self.start_ns.size)

    def total_s(self, name: str) -> float:
        return float(self.parts[name].sum()) / 1e9


def split_busy(timeline: Timeline) -> Busy:
    """Kernels count before communication, and communication before copies, where they overlap."""
    kind = timeline.work_kind
    moved, spoke = kind == COPY, kind == COMMUNICATION
    everything = np.ones(kind.size, dtype=bool)
    start, end = timeline.work_start_ns, timeline.work_end_ns

    def union(mask: Flags) -> int:
        return union_ns(start[mask], end[mask])

    busy, compute, without_copies = union(everything), union(~(moved | spoke)), union(~moved)
    return Busy(
        window_ns=int(end.max() - start.min()),
        compute_ns=compute,
        exposed_communication_ns=without_copies - compute,
        exposed_copy_ns=busy - without_copies,
        communication_ns=union(spoke),
        copy_ns=union(moved),
    )


def union_ns(start: Ints, end: Ints) -> int:
    """Length of the union of intervals sorted by start."""
    if start.size == 0:
        return 0
    reach = np.maximum.accumulate(end)
    before = np.concatenate([[start[0]], reach[:-1]])
    return int(np.maximum(reach - np.maximum(start, before), 0).sum())


def find_gaps(timeline: Timeline) -> Gaps:
    """Every idle interval of the device between its first and last work, and its parts by what was waited for."""
    start, end = timeline.work_start_ns, timeline.work_end_ns
    reach = np.maximum.accumulate(end)
    next_work = np.flatnonzero(start[1:] > reach[:-1]) + 1
    gap_start, gap_end = reach[next_work - 1], start[next_work]
    parts = {name: np.zeros(next_work.size) for name in GAP_PARTS}
    launch = timeline.work_launch[next_work]
    known = launch >= 0
    length = (gap_end - gap_start).astype(float)
    parts["unseen"][~known] = length[~known]
    launched = np.where(known, timeline.calls.start_ns[launch] if timeline.calls.size else 0, gap_end)
    late = known & (launched > gap_start)
    _queued(timeline, parts, known & ~late, length, next_work)
    _host_late(timeline, parts, late, gap_start, gap_end, launched, launch)
    return Gaps(gap_start, gap_end, next_work, parts)


# In the order in which reports show them.
GAP_PARTS = (
    "launch gaps",
    "input pipeline",
    "host sync",
    "waiting for an event",
    "between queued kernels",
    "no work",
    "unseen",
)


def _queued(
    timeline: Timeline,
    parts: dict[str, Floats],
    queued: Flags,
    length: Floats,
    next_work: Ints,
) -> None:
    """Work that lay ready: the device's handover, or a wait for other work or an event."""
    launch = timeline.work_launch
    same_graph = launch[next_work] == launch[next_work - 1]
    short = queued & (same_graph | (length <= _HANDOVER_NS))
    parts["between queued kernels"][short] = length[short]
    parts["waiting for an event"][queued & ~short] = length[queued & ~short]


def _host_late(
    timeline: Timeline,
    parts: dict[str, Floats],
    late: Flags,
    gap_start: Ints,
    gap_end: Ints,
    launched: Ints,
    launch: Ints,
) -> None:
    """The device ran out of work: share the time before the launch out by what the launching thread did."""
    rows = np.flatnonzero(late)
    if rows.size == 0:
        return
    begin, until = gap_start[rows], np.minimum(launched[rows], gap_end[rows])
    after = (gap_end[rows] - until).astype(float)
    stuck = after > _LAUNCH_LATENCY_NS
    parts["waiting for an event"][rows[stuck]] += after[stuck]
    host = (until - begin).astype(float) + np.where(stuck, 0.0, after)
    thread = timeline.calls.thread[launch[rows]]
    loading = covered_ns(timeline.loads, thread, begin, until)
    syncing = np.minimum(covered_ns(_named(timeline, _SYNCS), thread, begin, until), host - loading)
    active = covered_ns(timeline.ops, thread, begin, until) + covered_ns(timeline.calls, thread, begin, until)
    waiting = covered_ns(timeline.waits, thread, begin, until)
    rest = np.maximum(host - loading - syncing, 0.0)
    silent, long = active < _ACTIVE * rest, rest >= _LONG_NS
    idle = long & (waiting > 0.5 * rest)
    # Without operators in the trace a silent host may have been at work all the same.
    quiet = idle | (long & silent) if timeline.ops.size else idle
    blind = long & silent & ~quiet
    parts["unseen"][rows[blind]] += rest[blind]
    host_work = ~quiet & ~blind
    parts["input pipeline"][rows] += loading
    parts["host sync"][rows] += syncing
    parts["no work"][rows[quiet]] += rest[quiet]
    parts["launch gaps"][rows[host_work]] += rest[host_work]


def _named(timeline: Timeline, words: tuple[str, ...]) -> Spans:
    """Host calls that wait for the device: synchronising ones, and copies that are not asynchronous."""
    wanted = [any(word in name for word in words) and "Async" not in name for name in timeline.names]
    mask = np.array(wanted, dtype=bool)[timeline.calls.name] if timeline.calls.size else np.zeros(0, dtype=bool)
    calls = timeline.calls
    return Spans(calls.start_ns[mask], calls.end_ns[mask], calls.thread[mask], calls.name[mask])


def covered_ns(spans: Spans, thread: Ints, begin: Ints, until: Ints) -> Floats:
    """How much of each interval is covered by spans of its thread (nested and overlapping ones count once)."""
    covered = np.zeros(begin.size)
    for number in np.flatnonzero(np.bincount(thread)):
        mine = thread == number
        of_thread = spans.thread == number
        start, end = spans.start_ns[of_thread], spans.end_ns[of_thread]
        if start.size == 0:
            continue
        reach = np.maximum.accumulate(end)
        first = np.concatenate([[True], start[1:] > reach[:-1]])
        merged_start = start[first]
        merged_end = reach[np.concatenate([np.flatnonzero(first)[1:] - 1, [start.size - 1]])]
        edges = np.stack([merged_start, merged_end], axis=1).ravel().astype(float)
        total = np.cumsum(np.diff(edges, prepend=edges[0]) * (np.arange(edges.size) % 2))
        covered[mine] = np.interp(until[mine], edges, total) - np.interp(begin[mine], edges, total)
    return np.maximum(covered, 0.0)


def shares(busy: Busy, gaps: Gaps) -> tuple[Share, ...]:
    """The window in parts that sum to it: work by kind, then gaps by what was waited for."""
    whole = max(busy.window_ns, 1)
    rows = [
        ("kernels", busy.compute_ns / 1e9),
        ("exposed communication", busy.exposed_communication_ns / 1e9),
        ("exposed copies", busy.exposed_copy_ns / 1e9),
        *((name, gaps.total_s(name)) for name in GAP_PARTS),
    ]
    return tuple(Share(name=name, seconds=s, share=s * 1e9 / whole) for name, s in rows)
