"""How many requests the engine serves at once, and since when each one was in service: inferred from outside."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Activity, Ints, Streams
from powerband.locate.counters import Counters
from powerband.records.run import Run
from powerband.records.value import Missing

# How engines spell the most sequences they run at once.
LIMIT_KNOBS = ("n_parallel", "max_num_seqs", "max_running_requests", "max_batch_size", "slots", "parallel")
# And the most tokens, prompts' included, that one step takes.
BUDGET_KNOBS = (
    "chunk_tokens", "n_batch", "max_num_batched_tokens", "chunked_prefill_size", "max_batch_prefill_tokens",
    "max_num_tokens",
)  # fmt: skip
# With more in flight than were ever served at once, all seats are taken this share of the time, or seats are not it:
# prompts may take long, so not all seats show a stream at once.
_BINDING = 0.3
# Ends that left others decoding and requests waiting: fewer say nothing about how seats are refilled.
_MIN_OPENINGS = 5
# Fewer of the freed seats than this were taken before the engine ran empty: a static batch.
STATIC_REFILL = 0.5
# An overlap seen for less than this share of the decoding time may be network jitter, not concurrency.
_MIN_OVERLAP = 0.01


@dataclass(frozen=True, slots=True)
class Service:
    """``served`` is the most requests seen in service at once (None: it cannot be seen); ``start_ns`` per stream.

    ``stated_limit`` is the engine's own; ``limit`` the seats assumed (None: no request waited for one). ``refilled``:
    of the seats freed while requests waited, the share taken before the engine ran empty (None: too few were).
    """

    served: int | None
    stated_limit: int | None
    limit: int | None
    start_ns: Ints
    source: str
    refilled: float | None


def infer_service(run: Run, streams: Streams, activity: Activity, counters: Counters) -> Service:
    """Service starts, taking requests in order of sending into ``limit`` seats; a seat is free at the last token.

    A request whose tokens came before a seat should have been free was in service from the moment it was sent.
    """
    found = read_stated(run, LIMIT_KNOBS)
    stated = None if found is None else found[1]
    overlap = count_served(activity)
    gauge = None if counters.running is None else int(np.nanmax(counters.running))
    seen = max(gauge or 0, overlap)
    # Streams without duration (one token, or all in one chunk) show no overlap, so only a gauge can speak for them.
    blind = gauge is None and not bool(np.any(streams.last_ns > streams.first_ns))
    served = None if blind else max(seen, 1)
    refilled = None if served in (None, 1) or never_queued(counters) else refilled_share(streams, activity)
    static = refilled is not None and refilled < STATIC_REFILL
    limit = stated if stated is not None else served
    if stated is None and gauge is None and served is not None and not (static or is_binding(activity, served)):
        limit = None
    source = "the engine's running gauge" if gauge is not None and gauge >= overlap else "overlapping token streams"
    start_ns = streams.send_ns.copy()
    if static:
        start_ns = start_of_batch(streams, activity)
    elif limit is not None:
        start_ns = seat_in_order(streams, limit)
    return Service(served=served, stated_limit=stated, limit=limit, start_ns=start_ns, source=source, refilled=refilled)


def never_queued(counters: Counters) -> bool:
    """Whether the engine's own gauge shows an empty queue in every reading: then nothing waited for a seat.

    Answers of a few tokens end together, and what follows is in prefill by then: without this they look like a batch.
    """
    return counters.waiting is not None and float(np.nanmax(counters.waiting)) <= 0


def read_stated(run: Run, names: Sequence[str]) -> tuple[str, int] | None:
    """The first of an engine's limits with a number: as it reports it, else as it was asked for."""
    effective = {} if isinstance(run.effective, Missing) else run.effective.values
    for values in (effective, run.config.knobs):
        for name in names:
            value = values.get(name, values.get(f"--{name.replace('_', '-')}"))
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return name, value
    return None


def count_served(activity: Activity) -> int:
    """The most token streams that overlapped for at least 1 % of the time in which anything decoded."""
    spans = activity.spans_ns
    total = int(spans[activity.decoding > 0].sum())
    if total == 0:
        return 0
    levels = np.bincount(activity.decoding, weights=spans.astype(float))
    at_least = np.cumsum(levels[::-1])[::-1]
    return int(np.flatnonzero(at_least >= _MIN_OVERLAP * total).max())


def is_binding(activity: Activity, served: int) -> bool:
    """Whether the highest overlap looks like a limit: reached for much of the time in which more were in flight."""
    more = activity.decoding + activity.waiting > served
    spans = activity.spans_ns
    crowded = int(spans[more].sum())
    return crowded == 0 or int(spans[more & (activity.decoding >= served)].sum()) >= _BINDING * crowded


def seat_in_order(streams: Streams, seats: int) -> Ints:
    """When each request found a free seat, first come first served; ends are those observed."""
    starts = streams.send_ns.copy()
    busy_until: list[int] = []
    for i in range(streams.size):
        send, first = int(streams.send_ns[i]), int(streams.first_ns[i])
        start = send
        if len(busy_until) >= seats:
            start = min(max(send, heapq.heappop(busy_until)), first)
        starts[i] = start
        heapq.heappush(busy_until, int(streams.last_ns[i]))
    return starts


def refilled_share(streams: Streams, activity: Activity) -> float | None:
    """Of the answers that ended while others decoded and requests waited: share followed by a start before all ended.

    Continuous batching gives a freed seat away at once; a static batch gives none away until its longest answer ends.
    """
    long = streams.started & (streams.last_ns > streams.first_ns)
    ends = np.sort(streams.last_ns[long])
    queued = activity.at(ends, activity.waiting) > 0
    left = activity.at(ends, activity.decoding) > 0
    open_ends = ends[queued & left]
    if open_ends.size < _MIN_OPENINGS:
        return None
    empty = activity.edges_ns[:-1][activity.decoding == 0]
    until = np.append(empty, activity.edges_ns[-1])[np.searchsorted(empty, open_ends)]
    starts = np.append(np.sort(streams.first_ns[streams.started]), activity.edges_ns[-1])
    following = starts[np.minimum(np.searchsorted(starts, open_ends, side="right"), starts.size - 1)]
    taken = following < until
    if not taken.all() and _let_in_at_once(open_ends[~taken], until[~taken], following[~taken]):
        return 1.0
    return float(taken.mean())


def _let_in_at_once(ends: Ints, until: Ints, following: Ints) -> bool:
    """Whether the answer after a drain comes at its own pace from the first end on, and not from the last.

    Equal requests end nearly together, so one that was let in at the first end may still be prefilled at the last. If
    it was, the time from the first end varies less than the time from the last; in a static batch it is the reverse.
    """
    _, first = np.unique(until, return_index=True)
    if first.size < _MIN_OPENINGS:
        return False
    from_first, from_last = following[first] - ends[first], following[first] - until[first]
    return bool(np.std(from_first) < np.std(from_last))


def start_of_batch(streams: Streams, activity: Activity) -> Ints:
    """In a static batch nothing is in service before the batch ahead has ended: when the engine last ran empty."""
    ran_empty = activity.edges_ns[1:-1][(activity.decoding[1:] == 0) & (activity.decoding[:-1] > 0)]
    before = np.searchsorted(ran_empty, streams.first_ns, side="right") - 1
    padded = np.append(ran_empty, activity.edges_ns[0])  # index -1: before the first batch ended
    starts: Ints = np.minimum(np.maximum(streams.send_ns, padded[before]), streams.first_ns)
    return starts
