"""Where the wall time went: parts in whole nanoseconds that sum to the window exactly.

Seen from outside, an instant belongs to the client, to no work, to a wait for first tokens, to decoding, or to both of
these. Two inferences split them further. While tokens stream and prompts are prefilled too, gaps are longer than a
decode step alone: the excess is prefill. While nothing streams yet, the engine's own prefill seconds (where it counts
them) plus one step for each first token are prefill; the rest passed on the host, before the engine computed.
"""

from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Flags, Floats, Ints
from powerband.locate.contention import shortage_cores
from powerband.locate.view import View
from powerband.records.finding import Share
from powerband.records.value import known

# A gap this many times a decode step, and at least this long, is a stall and no slow step: steps vary, but not so.
_STALL_STEPS = 5.0
_STALL_S = 0.05
# The host counts as full above this share of its cores; below it, other work took nothing that was needed.
_HOST_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Parts:
    """The window in ns, and the two rates that the view of requests shares.

    ``alone_rate``: share of the time in which requests wait and none streams that is prefill.
    ``mixed_rate``: share of the time in which some wait and some stream that is prefill.
    """

    no_work_ns: int
    client_ns: int
    prefill_ns: int
    decode_ns: int
    host_ns: int
    contention_ns: int
    unseen_ns: int
    alone_rate: float
    mixed_rate: float

    @property
    def window_ns(self) -> int:
        named = (self.no_work_ns, self.client_ns, self.prefill_ns, self.decode_ns, self.host_ns)
        return sum(named) + self.contention_ns + self.unseen_ns

    def shares(self) -> tuple[Share, ...]:
        """The parts in a fixed order, under the names that reports print."""
        whole = self.window_ns
        rows = (
            ("prefill", self.prefill_ns),
            ("decode", self.decode_ns),
            ("host", self.host_ns),
            ("contention", self.contention_ns),
            ("client", self.client_ns),
            ("no work", self.no_work_ns),
            ("unseen", self.unseen_ns),
        )
        return tuple(Share(name=name, seconds=ns / 1e9, share=ns / whole if whole else 0.0) for name, ns in rows)


def split_window(view: View) -> Parts:
    """Partition the window; every nanosecond belongs to exactly one part."""
    activity = view.activity
    spans = activity.spans_ns
    decoding, waiting = activity.decoding > 0, activity.waiting > 0
    alone = ~decoding & waiting & ~activity.silent
    idle = ~decoding & ~waiting
    client = idle & (activity.due > 0)
    mixed, pure = decoding & waiting, decoding & ~waiting

    alone_ns, mixed_ns, pure_ns = (int(spans[mask].sum()) for mask in (alone, mixed, pure))
    mixed_rate = prefill_share_of_mixed(view)
    mixed_prefill_ns = round(mixed_ns * mixed_rate)
    alone_rate = prefill_share_of_alone(view, alone_ns, mixed_prefill_ns)
    alone_prefill_ns = round(alone_ns * alone_rate)
    stalled_ns = min(round(stalled_s(view) * 1e9), pure_ns)
    busy = {
        "prefill": alone_prefill_ns + mixed_prefill_ns,
        "decode": pure_ns - stalled_ns + mixed_ns - mixed_prefill_ns,
        "host": alone_ns - alone_prefill_ns,
        "unseen": stalled_ns + int(spans[activity.silent].sum()),
    }
    lost = contended_share(view, decoding | waiting)
    taken = {name: round(ns * lost) for name, ns in busy.items()}
    return Parts(
        no_work_ns=int(spans[idle & ~client].sum()),
        client_ns=int(spans[client].sum()),
        prefill_ns=busy["prefill"] - taken["prefill"],
        decode_ns=busy["decode"] - taken["decode"],
        host_ns=busy["host"] - taken["host"],
        contention_ns=sum(taken.values()),
        unseen_ns=busy["unseen"] - taken["unseen"],
        alone_rate=alone_rate,
        mixed_rate=mixed_rate,
    )


def prefill_share_of_mixed(view: View) -> float:
    """How much of the gaps with prompts in service goes beyond a decode step for as many sequences, 0..1.

    Excess and shortfall cancel before the sum is cut at 0, so jitter does not count as prefill.
    """
    if view.steps is None:
        return 0.0
    gaps = view.gaps
    waiting = view.activity.integral_s((view.activity.waiting > 0).astype(float), gaps.start_ns, gaps.end_ns) > 0
    total = float(gaps.seconds[waiting].sum())
    if total <= 0:
        return 0.0
    alone = view.steps.at(gaps.sequences[waiting]) * gaps.tokens[waiting]
    return float(np.clip(1 - alone.sum() / total, 0.0, 1.0))


def prefill_share_of_alone(view: View, alone_ns: int, mixed_prefill_ns: int) -> float:
    """Share of the time with waits and no stream that the engine accounts for; 1 where it counts no prefill."""
    counted = view.counters.prefill_s
    if counted is None or alone_ns == 0:
        return 1.0
    step_s = 0.0 if view.steps is None else float(view.steps.at(1))
    before_first = view.streams.first_ns[view.streams.started] - 1
    first_steps_s = step_s * int((view.activity.at(before_first, view.activity.decoding) == 0).sum())
    explained_s = max(counted - mixed_prefill_ns / 1e9, 0.0) + first_steps_s
    return min(explained_s / (alone_ns / 1e9), 1.0)


def stalled_s(view: View) -> float:
    """Wall time in which streams stood still with no prompt in service: nothing seen from outside explains it."""
    if view.steps is None:
        return 0.0
    gaps = view.gaps
    expected = view.steps.at(gaps.sequences) * gaps.tokens
    stalled = gaps.clean & (gaps.seconds > _STALL_STEPS * expected) & (gaps.seconds > _STALL_S)
    return float(((gaps.seconds - expected)[stalled] / gaps.sequences[stalled]).sum())


def contended_share(view: View, busy: Flags) -> float:
    """Share of the busy time that other processes took: of the engine's threads, or of a host that was full."""
    threads = view.run.config.knobs.get("n_threads")
    taken = weight = 0.0
    for sample in view.run.host_samples:
        engine = known(sample.engine_cores) or 0.0
        others = sample.other_cores + sample.steal_cores
        start = np.array([sample.t_ns - round(sample.interval_s * 1e9)], dtype=np.int64)
        end = np.array([sample.t_ns], dtype=np.int64)
        overlap = float(view.activity.integral_s(busy.astype(float), start, end)[0])
        if isinstance(threads, int) and threads > 0:
            taken += overlap * shortage_cores(sample, threads) / min(threads, sample.cores)
        elif engine + sample.client_cores + others >= _HOST_FULL * sample.cores:
            taken += overlap * min(others / sample.cores, 1.0)
        weight += overlap
    return taken / weight if weight > 0 else 0.0


def prefill_rate(view: View, parts: Parts) -> Floats:
    """Per interval of the activity, the share of it in which the engine was prefilling."""
    activity = view.activity
    decoding, waiting = activity.decoding > 0, activity.waiting > 0
    rate = np.zeros(activity.spans_ns.size)
    rate[~decoding & waiting & ~activity.silent] = parts.alone_rate
    rate[decoding & waiting] = parts.mixed_rate
    return rate


def explained_wait_s(view: View, parts: Parts, from_ns: Ints, to_ns: Ints) -> Floats:
    """Seconds within each span in which the engine was prefilling, its own prompt or another's."""
    return view.activity.integral_s(prefill_rate(view, parts), from_ns, to_ns)
