"""Why requests wait for a seat: one seat, a static batch, a full KV cache, a full step, or simply too few seats."""

from dataclasses import dataclass

import numpy as np

from powerband.locate.request_time import RequestTime
from powerband.locate.service import BUDGET_KNOBS, STATIC_REFILL, read_stated
from powerband.locate.view import View
from powerband.records.finding import Cause, Finding
from powerband.records.units import format_duration, percent

# A tenth of the request time: below it, removing the queue cannot be told from noise of a few percent.
MIN_SHARE = 0.1
# The cache counts as full from here: engines keep a small reserve, and a sequence grows after it was let in.
_KV_FULL = 0.9
# Below this the cache is no reason to keep a request out, whatever the seats show.
_KV_ROOM = 0.5
# Preempted this often per request, recomputation is no accident of one burst.
_PREEMPTIONS_PER_REQUEST = 0.02
# Seats free in most readings that show a queue: seats are not what the queue waits for. One of many is free for a
# moment whenever an answer ends, so a tenth of them has to be.
FREE_SEATS, SEATS_TAKEN = 0.5, 0.9
# Steps that take this share of the tokens they may while requests wait are full: engines count a prompt when it is
# done, and the last step of a prompt takes what is left of it.
_FULL_STEPS = 0.7
# Below this, more seats only move the wait from the queue into longer steps.
_WORTH_SEATS = 1.05
# Fewer turns than this give no slope.
_MIN_TURNS = 5


@dataclass(frozen=True, slots=True)
class SeatUse:
    """How seats were used while requests waited; None where it cannot be seen."""

    free_while_waiting: float | None  # share of readings with a queue in which seats were free
    kv_while_waiting: float | None  # mean KV use in those readings
    kv_with_one_more: float | None  # and if another sequence of mean size ran too
    refilled: float | None  # share of the seats freed under a queue that were taken before the engine ran empty


@dataclass(frozen=True, slots=True)
class Wait:
    """What a queue waits for: the cause, the figures, and whether it is a step rather than a seat or memory.

    ``setting`` is the engine's limit on the tokens of a step, where steps were seen to be full.
    """

    cause: Cause
    why: str
    for_step: bool = False
    setting: str = ""


def find_queueing(view: View, time: RequestTime) -> list[Finding]:
    """One finding for the queue, named by what it waits for; none where it is small."""
    share = time.share(time.queue_s)
    if share < MIN_SHARE:
        return []
    use = seat_use(view)
    wait = name_queue(view, use)
    if wait is None:
        return []
    mean_s = time.queue_s / max(time.requests, 1)
    source = "the engine's waiting gauge" if time.from_gauges else "order of service"
    waits = f"the mean request waits {format_duration(mean_s)} in the queue ({percent(share)} of its time, {source})"
    remedy, test = _advice(view, wait)
    return [
        Finding(
            cause=wait.cause, share=share, evidence=f"{waits}; {wait.why}", remedy=remedy, test=test, of="request_time",
            setting=wait.setting,
        )
    ]  # fmt: skip


def name_queue(view: View, use: SeatUse) -> Wait | None:
    """What the queue waits for, and the figures that say so; None where it is no queue of the engine's."""
    served, limit, counters = view.service.served, view.service.limit, view.counters
    count = max(view.streams.size, 1)
    if counters.preemptions is not None and counters.preemptions >= max(_PREEMPTIONS_PER_REQUEST * count, 1):
        return Wait("kv_pressure", f"{counters.preemptions:.0f} preemptions in {count} requests")
    if use.kv_while_waiting is not None and max(use.kv_while_waiting, use.kv_with_one_more or 0.0) >= _KV_FULL:
        more = "" if use.kv_with_one_more is None else f", {percent(use.kv_with_one_more)} with one more sequence"
        return Wait("kv_pressure", f"KV cache {percent(use.kv_while_waiting)} full while requests waited{more}")
    free = use.free_while_waiting
    often_free = free is not None and free > FREE_SEATS
    seats = (
        f"seats were free in {percent(free or 0)} of the readings with a queue (limit {limit}, at most {served} ran)"
    )
    roomless = Wait("kv_pressure", f"{seats}, so memory for another sequence was missing, not a seat")
    budget = read_stated(view.run, BUDGET_KNOBS) if often_free else None
    if budget is not None and (tokens := _step_tokens(view)) is not None and tokens >= _FULL_STEPS * budget[1]:
        full = f"a step took {tokens:.0f} tokens of at most {budget[1]} meanwhile ({budget[0]})"
        return Wait("queueing", f"{seats}, and {full}: prompts wait for room in a step", True, budget[0])
    if often_free and use.kv_while_waiting is not None and use.kv_while_waiting >= _KV_ROOM:
        return roomless
    if use.refilled is not None and use.refilled < STATIC_REFILL:
        refilled = f"only {percent(use.refilled)} of the seats freed while requests waited were taken"
        return Wait("static_batching", f"{refilled} before the whole batch ended")
    if served == 1 and view.service.stated_limit in (None, 1):
        slope = turnaround_slope(view)
        if not counters.has_queue and slope is not None and slope < 0.5:
            return None  # answers come one at a time, but their starts do not depend on when the one before ended
        return Wait("no_batching", f"never more than 1 request was served at once ({view.service.source})")
    if often_free and use.kv_while_waiting is None:
        return roomless
    if often_free and view.service.stated_limit is not None:
        return Wait("queueing", f"{seats} and the KV cache had room: requests wait for a step that takes them", True)
    in_flight = view.activity.waiting + view.activity.decoding
    mean = float(np.average(in_flight, weights=np.maximum(view.activity.spans_ns, 1)))
    why = f"at most {served} served at once ({view.service.source}), {mean:.1f} in flight on average"
    return Wait("queueing", why)


def _step_tokens(view: View) -> float | None:
    """Mean tokens of a step, by the engine's own counters between readings that both show a queue."""
    waiting, tokens, steps = view.counters.waiting, view.counters.token_readings, view.counters.step_readings
    if waiting is None or tokens is None or steps is None:
        return None
    queued = np.nan_to_num(waiting) > 0
    both = queued[:-1] & queued[1:]
    made = float(np.nansum(np.diff(steps)[both]))
    return float(np.nansum(np.diff(tokens)[both])) / made if made > 0 else None


def seat_use(view: View) -> SeatUse:
    counters = view.counters
    free = kv = one_more = None
    if counters.running is not None and counters.waiting is not None:
        queued = np.nan_to_num(counters.waiting) > 0
        if queued.any():
            limit = view.service.limit or int(np.nanmax(counters.running))
            free = float(np.mean(counters.running[queued] <= SEATS_TAKEN * limit))
            if counters.kv_used_ratio is not None and not np.isnan(counters.kv_used_ratio[queued]).all():
                kv = float(np.nanmean(counters.kv_used_ratio[queued]))
                one_more = kv * (1 + 1 / max(float(np.nanmean(counters.running[queued])), 1.0))
    return SeatUse(
        free_while_waiting=free, kv_while_waiting=kv, kv_with_one_more=one_more, refilled=view.service.refilled
    )


def turnaround_slope(view: View) -> float | None:
    """How much later the next answer starts for each second the one before takes: 1 with one seat, 0 if unrelated.

    A serial stage in front of the engine (a tokenizer) also lets answers out one at a time, but at its own pace.
    """
    streams = view.streams
    order = np.argsort(streams.first_ns[streams.started])
    first, last = streams.first_ns[streams.started][order] / 1e9, streams.last_ns[streams.started][order] / 1e9
    sent = streams.send_ns[streams.started][order] / 1e9
    backlog = sent[1:] <= last[:-1]
    took, between = (last - first)[:-1][backlog], np.diff(first)[backlog]
    if took.size < _MIN_TURNS or took.std() < 0.1 * max(took.mean(), 1e-9):
        return None
    return float(np.cov(took, between)[0, 1] / np.var(took, ddof=1))


def _advice(view: View, wait: Wait) -> tuple[str, str]:
    cause = wait.cause
    if wait.setting:
        return (
            f"more tokens a step ({wait.setting}), while arithmetic and the time between tokens bear it; else shorter "
            "prompts, reused prefixes, more replicas, or less traffic",
            f"raise {wait.setting}: the queue should shrink; where it stays, prefill itself is the limit",
        )
    if wait.for_step:
        return (
            "shorter prompts, reused prefixes, more replicas, or less traffic; more seats bring nothing",
            "halve the prompts, or change the limit on tokens a step: the queue should follow",
        )
    gain = predict_more_seats(view)
    if cause == "no_batching":
        return (
            f"serve several sequences at once (more slots, continuous batching){gain}",
            "raise the number of sequences served at once: queueing should fall, output tokens/s rise",
        )
    if cause == "static_batching":
        return (
            "switch to continuous batching, so that a freed seat is taken at the next step",
            "the same traffic with all answers equally long: static batching then costs nothing",
        )
    if cause == "kv_pressure":
        return (
            f"more room for KV: an 8-bit cache, a shorter context limit, weights in fewer bits, more memory{gain}",
            "halve and double the KV cache: the queue should grow and shrink with it at the same number of seats",
        )
    return (
        f"more sequences at once, if memory and TPOT bear it, or more replicas, or less traffic{gain}",
        "raise the limit on sequences, or halve the arrival rate: the queue should vanish while the step time stays",
    )


def predict_more_seats(view: View) -> str:
    """What seats for all requests in flight would bring by the measured step times; empty where they have no slope."""
    steps, served = view.steps, view.service.served
    if steps is None or served is None:
        return ""
    spans = view.activity.spans_ns
    in_flight = view.activity.waiting + view.activity.decoding
    busy = in_flight > 0
    wanted = int(np.ceil(np.average(in_flight[busy], weights=spans[busy]))) if spans[busy].sum() else served
    if wanted <= served:
        return ""
    if not steps.has_slope:
        return f"; up to {wanted / served:.1f}x output tokens/s with {wanted} seats if steps stay as short as they are"
    gain = wanted / served * float(steps.at(served)) / float(steps.at(wanted))
    if gain < _WORTH_SEATS:
        return "; by the step times measured, more seats would hardly raise output tokens/s"
    return f"; {gain:.1f}x output tokens/s during decode with {wanted} seats, by the step times measured"
