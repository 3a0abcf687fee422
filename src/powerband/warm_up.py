"""Warm an engine up before it is measured: more and more requests at once, then longer prompts; none is counted.

An engine compiles kernels and captures graphs for a size of batch when the first of that size comes (vLLM's MoE kernels
take seconds each). Those costs do not belong to the workload, so every size up to the workload's own is met before.
"""

import math
import time
from collections.abc import Callable, Sequence

from powerband.engines.base import RunningEngine
from powerband.health import broken, raise_if_broken
from powerband.load.runner import run_load
from powerband.load.target import Loaded, Target
from powerband.records.errors import EngineError
from powerband.records.units import format_duration, ns_to_s
from powerband.records.workload import RequestSpec, Workload

_MOST_IN_FLIGHT, _LONGEST_INPUT = 256, 2048
_INPUT, _OUTPUT = 16, 4
_ANSWER_S = 60.0  # for one step: the very first request may compile much
_WIDTHS_S, _PROMPTS_S = 3.0, 2.0  # of an engine that is warm; what compiling adds ends by _UNTIL_S
_UNTIL_S = 30.0
_TRIES = 3
# An open loop's requests in flight are not known before: as if a token took 50 ms and the first half a second.
_ASSUMED_TTFT_S, _ASSUMED_TPOT_S = 0.5, 0.05


def in_flight(workload: Workload) -> int:
    """How many requests the workload keeps in flight: its concurrency, or for an open loop a guess; at most 256."""
    count = len(workload.requests)
    wanted = float(workload.concurrency or count)
    rate = workload.request_rate_per_s
    if rate is not None:
        wanted = rate * (_ASSUMED_TTFT_S + _ASSUMED_TPOT_S * workload.output_tokens / count)
    return max(1, min(math.ceil(wanted), count, _MOST_IN_FLIGHT))


def warm_up(running: RunningEngine, target: Target, workload: Workload) -> tuple[str, ...]:
    """1, 2, 4 ... requests at once up to ``in_flight``, then prompts up to the workload's longest (at most 2,048).

    Ends early where the engine serves no more at once (twice as many take twice as long), or a step more would take it
    over some seconds. Gives what a reader must know: that the engine was still compiling at the end. Raises EngineError
    where it dies or hangs, and KeyboardInterrupt on Ctrl-C.
    """
    until_s = time.monotonic() + _UNTIL_S
    longest = max((request.input_tokens for request in workload.requests), default=1)
    output = min(_OUTPUT, max((request.output_tokens for request in workload.requests), default=1))

    def send(width: int, tokens: int) -> float:
        each = RequestSpec(offset_ns=0, input_tokens=tokens, output_tokens=output)
        seed = workload.seed + 1 + width + tokens
        return _send(running, target, Workload((each,) * width, source="warm-up", concurrency=width, seed=seed))

    top, short = in_flight(workload), min(longest, _INPUT)
    widths, prompts = _sizes(1, top, 2), _sizes(4 * _INPUT, min(longest, _LONGEST_INPUT), 4)
    cold = [
        _climb(lambda width: send(width, short), widths, _WIDTHS_S, until_s, "in flight", saturates=True),
        _climb(lambda tokens: send(1, tokens), prompts, _PROMPTS_S, until_s, "tokens of prompt"),
    ]
    return tuple(note for note in cold if note is not None)


def _sizes(first: int, last: int, factor: int) -> list[int]:
    """``first`` and its multiples below ``last``, then ``last``; empty where that is below ``first``."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return [*sizes, last] if sizes or first == last else []


def _climb(
    send: Callable[[int], float],
    sizes: Sequence[int],
    allowed_s: float,
    until_s: float,
    unit: str,
    *,
    saturates: bool = False,
) -> str | None:
    """Send each size until it takes no longer than its size explains; words where the end was not reached warm."""
    spent_s, last_s, before = 0.0, 0.0, 0
    for size in sizes:
        expected_s = last_s * size / before if before else 0.0
        if spent_s + expected_s > allowed_s:
            return None
        if time.monotonic() > until_s:
            return f"warmed up to {before} of {sizes[-1]} {unit} only, in {_UNTIL_S:.0f} s: it still compiled"
        tries = _settle(lambda size=size: send(size), expected_s)  # type: ignore[misc]
        took_s = min(tries)
        if math.isinf(took_s):
            return None  # not served: what is wrong will show in the run
        if len(tries) == _TRIES and not _close(tries[-2], tries[-1]):
            shown = ", ".join(format_duration(one) for one in tries)
            if size == sizes[-1]:
                return f"not warm: {size} {unit} took {shown} one after the other"
        if saturates and last_s and took_s > 0.85 * expected_s + 0.02:
            return None
        spent_s, last_s, before = spent_s + took_s, took_s, size
    return None


def _settle(send: Callable[[], float], expected_s: float) -> list[float]:
    """Seconds of each try; another one follows where a try took longer than expected and than the next one did."""
    tries = [send()]
    reference_s = expected_s
    while len(tries) < _TRIES and not math.isinf(tries[-1]) and not _close(tries[-1], reference_s):
        tries.append(send())
        if _close(tries[-2], tries[-1]):
            break
    return tries


def _close(took_s: float, reference_s: float) -> bool:
    return took_s <= 1.5 * reference_s + 0.25


def _send(running: RunningEngine, target: Target, workload: Workload) -> float:
    """Seconds from the first request's sending to the last one's end; inf where one was not answered."""
    try:
        loaded = run_load(target, workload, t0_ns=time.monotonic_ns(), deadline_s=_ANSWER_S)
    except EngineError:
        if running.alive():
            raise
        raise broken(running, "the engine died in its warm-up") from None
    raise_if_interrupted(loaded)
    raise_if_broken(running, target, loaded, "in its warm-up")
    if any(trace.status != "ok" for trace in loaded.traces):
        return math.inf
    return ns_to_s(loaded.end_ns - min(trace.t_send_ns or 0 for trace in loaded.traces))


def raise_if_interrupted(loaded: Loaded) -> None:
    """The load generator ends quietly on Ctrl-C; here it must end the trial, since half a trial is none."""
    if loaded.stopped_because == "interrupted":
        raise KeyboardInterrupt
