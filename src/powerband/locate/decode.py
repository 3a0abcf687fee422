"""What decode steps are made of: memory traffic that all sequences share, or arithmetic that each one adds."""

import numpy as np

from powerband.locate.device_use import BUSY, LAUNCHING, MEMORY_BUSY, STEADY
from powerband.locate.host_limit import HostLimit, read_host_limit
from powerband.locate.queueing import MIN_SHARE
from powerband.locate.request_time import RequestTime
from powerband.locate.roofline import NEAR_FLOOR, decode_floor_s
from powerband.locate.steps import StepCurve
from powerband.locate.view import View
from powerband.records.finding import Finding
from powerband.records.units import format_duration, percent

# Half of the step grows with the number of sequences: beyond it, more sequences bring less than they cost in TPOT.
_GROWING = 0.5
_TEST = (
    "sweep the number of concurrent requests 1, 2, 4 ...: flat TPOT is bandwidth, TPOT that grows with it is compute"
)


def find_decode(view: View, time: RequestTime) -> list[Finding]:
    """One finding for decode, where it is a material share of the request time."""
    share = time.share(time.decode_s)
    if share < MIN_SHARE:
        return []
    limit = read_host_limit(view)
    if limit is not None:
        return [_by_host(view, limit, share)]
    steps = view.steps
    if steps is None:
        why = "too few token gaps to time a decode step"
        return [_undecided(share, f"decode takes {percent(share)} of the request time; {why}")]
    if steps.has_slope and _wide(steps):
        return [_by_idle_card(view, time, steps) or _by_slope(steps, share)]
    return [_by_floor(view, time, steps)]


def _by_host(view: View, limit: HostLimit, share: float) -> Finding:
    card = "" if view.use is None else f", while {view.use.seen}"
    return Finding(
        cause="scheduler_bound",
        share=share,
        evidence=(
            f"decode takes {percent(share)} of the request time, and {limit.seen}{card}: each step waits for the host"
        ),
        remedy="more cores for the engine (taskset, cpuset, container limit), faster ones, less host work a step",
        test="let the engine run on more cores: the time between tokens should fall",
        of="request_time",
    )


def _wide(steps: StepCurve) -> bool:
    """Whether concurrency varied enough for a slope: at least twofold."""
    counts = [n for n, _, _ in steps.levels]
    return max(counts) >= 2 * min(counts)


def _shape(steps: StepCurve) -> str:
    low, high = steps.levels[0], steps.levels[-1]
    return (
        f"a decode step takes {format_duration(low[1])} for {low[0]} and {format_duration(high[1])} for {high[0]} "
        f"sequences; at {steps.typical:.1f}, the usual number, {percent(steps.growing_share)} of it grows with them"
    )


def _by_idle_card(view: View, time: RequestTime, steps: StepCurve) -> Finding | None:
    """A card without a kernel for half of the time is waited for by nobody: what is in a step is the host's work.

    Launching is the same for any number of sequences; scheduling, detokenising and sending grow with them.
    """
    if view.use is None or not _card_waits(view, time):
        return None
    share = time.share(time.decode_s)
    seen = f"{_shape(steps)}, while {view.use.seen}: for the rest of each step the device waits for the host"
    if steps.growing_share < _GROWING:
        return _launching(seen, share)
    return Finding(
        cause="scheduler_bound",
        share=share,
        evidence=seen,
        remedy="less host work a sequence (API server processes, stream intervals, token ids), a faster host core",
        test="the same load from half as many streams: steps should shorten, output tokens/s hardly fall",
        of="request_time",
    )


def _card_waits(view: View, time: RequestTime) -> bool:
    """Whether decode steps leave the card idle for half of their time, even if it ran in nothing but these.

    The driver's readings are means over up to a second: with idle time between requests they say little of steps.
    """
    busy = None if view.use is None else view.use.busy_ratio
    served_s = time.decode_s + time.stalled_s + time.prefill_s
    if busy is None or view.activity.served_share < STEADY or served_s <= 0:
        return False
    return busy < LAUNCHING * time.decode_s / served_s


def _launching(evidence: str, share: float) -> Finding:
    return Finding(
        cause="launch_bound",
        share=share,
        evidence=evidence,
        remedy="CUDA graphs, fused kernels, fewer host syncs, a faster host core",
        test="eager against graphs; a profiler trace of a few decode steps shows the gaps between kernels",
        of="request_time",
    )


def _by_slope(steps: StepCurve, share: float) -> Finding:
    shape = _shape(steps)
    if steps.growing_share >= _GROWING:
        return Finding(
            cause="compute_bound",
            share=share,
            evidence=f"{shape} (arithmetic, or KV traffic in long contexts)",
            remedy="faster kernels or card, fewer bits where arithmetic gains from them; more sequences bring little",
            test=_TEST,
            of="request_time",
        )
    n = max(steps.typical, 1.0)
    gain = 2 * float(steps.at(n)) / float(steps.at(2 * n))
    return Finding(
        cause="memory_bandwidth_bound",
        share=share,
        evidence=f"{shape}: the weights are read once for all",
        remedy=(
            f"more sequences a step ({2 * n:.0f} instead of {n:.0f}: {gain:.2f}x output tokens/s by these step times), "
            "weights in fewer bits, speculative decoding"
        ),
        test=_TEST,
        of="request_time",
    )


def _by_floor(view: View, time: RequestTime, steps: StepCurve) -> Finding:
    """One level of concurrency only: compare with the roofline where model and device are known."""
    share = time.share(time.decode_s)
    step_s = float(steps.at(steps.typical))
    lengths = view.streams.input_tokens + view.streams.output_tokens / 2
    context = float(np.mean(lengths[view.streams.started])) if view.streams.started.any() else 0.0
    floor = decode_floor_s(view.model, view.device, sequences=steps.typical, context_tokens=context, ledger=view.ledger)
    pace = f"{format_duration(step_s)} a step at {steps.typical:.1f} sequences"
    seen = f"decode takes {percent(share)} of the request time, {pace}"
    if floor is None and (by_use := _by_use(view, time, seen)) is not None:
        return by_use
    if floor is None:
        return _undecided(share, f"{seen}; concurrency did not vary and no device was given, so its kind is open")
    times = step_s / floor if floor > 0 else float("inf")
    beside = f"{times:.1f}x the {format_duration(floor)} that reading weights and KV takes on {view.device_name}"
    if times <= NEAR_FLOOR:
        return Finding(
            cause="memory_bandwidth_bound",
            share=share,
            evidence=f"{seen}: {beside}",
            remedy="more sequences a step, weights in fewer bits, speculative decoding",
            test=_TEST,
            of="request_time",
        )
    if view.device is not None and view.device.kind == "gpu":
        return Finding(
            cause="launch_bound",
            share=share,
            evidence=f"{seen}: {beside}, so memory traffic does not explain it",
            remedy="CUDA graphs, fused kernels, fewer host syncs",
            test="a profiler trace of a few decode steps: the gaps between kernels; or eager against graphs",
            of="request_time",
        )
    return _undecided(share, f"{seen}: {beside}; concurrency did not vary, so arithmetic and overhead look alike")


def _by_use(view: View, time: RequestTime, seen: str) -> Finding | None:
    """The first cut from the driver's readings: little use is launching, full use with moving memory is bandwidth."""
    use, share = view.use, time.share(time.decode_s)
    if use is None or use.busy_ratio is None or use.memory_busy_ratio is None:
        return None
    if _card_waits(view, time):
        return _launching(f"{seen}, while {use.seen}: for the rest of each step the device waits for the host", share)
    if use.busy_ratio >= BUSY and use.memory_busy_ratio >= MEMORY_BUSY:
        return Finding(
            cause="memory_bandwidth_bound",
            share=share,
            evidence=f"{seen}, while {use.seen}",
            remedy="more sequences a step, weights and KV in fewer bits, speculative decoding",
            test=_TEST,
            of="request_time",
        )
    return None


def _undecided(share: float, evidence: str) -> Finding:
    return Finding(
        cause="undecided",
        share=share,
        evidence=evidence,
        remedy="vary the concurrency, or name model and device, to tell bandwidth from compute",
        test=_TEST,
        of="request_time",
    )
