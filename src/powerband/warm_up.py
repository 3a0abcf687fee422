"""Warm an engine up before it is measured: more and more requests at once, longer prompts, a rehearsal; none counts.

An engine compiles kernels and captures graphs for a size of batch when the first of that size comes (vLLM's MoE kernels
take a second each). Those costs do not belong to the workload, so its sizes are met before.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from powerband.engines.base import RunningEngine
from powerband.health import broken, raise_if_broken
from powerband.load.runner import run_load
from powerband.load.target import Loaded, Target
from powerband.records.errors import EngineError
from powerband.records.units import format_duration, ns_to_s
from powerband.records.workload import RequestSpec, Workload

_MOST_IN_FLIGHT, _LONGEST_INPUT = 256, 2048
_INPUT, _OUTPUT, _REHEARSED_OUTPUT = 16, 4, 8
_ANSWER_S = 60.0  # for one step: the very first request may compile much
_MOMENT_S = 2.0  # in which a parent learns that its child is gone, also where others keep the cores busy
_WIDTHS_S, _PROMPTS_S, _REHEARSAL_S = 3.0, 2.0, 3.0  # of an engine that is warm; what compiling adds ends by _UNTIL_S
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


class WarmUp(NamedTuple):
    """``bursts``: how many requests it sent at once, one after the other. ``notes``: what a reader must know."""

    bursts: tuple[int, ...]
    notes: tuple[str, ...]


def warm_up(running: RunningEngine, target: Target, workload: Workload) -> WarmUp:
    """1, 2, 4 ... requests at once up to ``in_flight``, then prompts up to the workload's longest (at most 2,048).

    Where a size took longer at first than the next time, the engine compiles: the workload's own first prompts are
    rehearsed then. Ends early where the engine serves no more at once (twice as many take twice as long), or a step
    more would take it over some seconds. A note says where the engine was still compiling at the end.
    Raises EngineError where it dies or hangs, and KeyboardInterrupt on Ctrl-C.
    """
    longest = max((request.input_tokens for request in workload.requests), default=1)
    output = min(_OUTPUT, max((request.output_tokens for request in workload.requests), default=1))
    bursts: list[int] = []

    def send(requests: Sequence[RequestSpec], width: int) -> float:
        bursts.append(width)
        seed = workload.seed + 1 + width + len(requests) + requests[0].input_tokens
        return _send(
            running, target, Workload(requests=tuple(requests), source="warm-up", concurrency=width, seed=seed)
        )

    def alike(width: int, tokens: int) -> float:
        return send([RequestSpec(offset_ns=0, input_tokens=tokens, output_tokens=output)] * width, width)

    top, short = in_flight(workload), min(longest, _INPUT)
    climb = Climb()
    climb.up(lambda width: alike(width, short), _sizes(1, top, 2), _WIDTHS_S, "in flight", saturates=True)
    most = min(longest, _LONGEST_INPUT)
    climb.up(lambda tokens: alike(1, tokens), _sizes(min(4 * _INPUT, most), most, 4), _PROMPTS_S, "tokens")
    own = rehearsal(workload, 2 * top, climb.unit_s)
    if climb.compiled and len(own) > 1:
        climb.up(lambda count: send(own[:count], min(top, count)), [len(own)], math.inf, "requests of its own")
    return WarmUp(tuple(bursts), tuple(climb.notes))


def rehearsal(workload: Workload, count: int, token_s: float) -> list[RequestSpec]:
    """The workload's first prompts with answers of 1 to 8 tokens, so many that they take some seconds at most."""
    requests, spent_s = [], 0.0
    for place, request in enumerate(workload.requests[:count]):
        spent_s += request.input_tokens * token_s
        if spent_s > _REHEARSAL_S:
            break
        output = min(request.output_tokens, 1 + place % _REHEARSED_OUTPUT)
        requests.append(RequestSpec(offset_ns=0, input_tokens=request.input_tokens, output_tokens=output))
    return requests


def _sizes(first: int, last: int, factor: int) -> list[int]:
    """``first`` and its multiples below ``last``, then ``last``; empty where that is below ``first``."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return [*sizes, last] if sizes or first == last else []


class Climb:
    """Sends each size until it takes no longer than its size explains.

    ``compiled``: a size took longer at first than the next time. ``unit_s``: seconds of the last size over that size.
    ``notes``: where the end was not reached warm.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.compiled, self.unit_s = False, 0.0
        self._until_s = time.monotonic() + _UNTIL_S

    def up(
        self,
        send: Callable[[int], float],
        sizes: Sequence[int],
        allowed_s: float,
        unit: str,
        *,
        saturates: bool = False,
    ) -> None:
        spent_s, last_s, before = 0.0, 0.0, 0
        for size in sizes:
            expected_s = last_s * size / before if before else 0.0
            if spent_s + expected_s > allowed_s:
                return
            if time.monotonic() > self._until_s:
                self.notes.append(f"warmed up to {before} of {sizes[-1]} {unit} only: it compiled for {_UNTIL_S:.0f} s")
                return
            tries = _settle(lambda size=size: send(size), expected_s)  # type: ignore[misc]
            took_s = min(tries)
            if math.isinf(took_s):
                return  # not served: what is wrong will show in the run
            self._judge(tries, f"{size} {unit}", last=size == sizes[-1])
            if saturates and last_s and took_s > 0.85 * expected_s + 0.02:
                return
            spent_s, last_s, before, self.unit_s = spent_s + took_s, took_s, size, took_s / size

    def _judge(self, tries: Sequence[float], what: str, *, last: bool) -> None:
        self.compiled = self.compiled or (len(tries) > 1 and not _close(tries[0], min(tries)))
        if last and len(tries) == _TRIES and not _close(tries[-2], tries[-1]):
            shown = ", ".join(format_duration(one) for one in tries)
            self.notes.append(f"not warm: {what} took {shown} one after the other")


def _settle(send: Callable[[], float], expected_s: float) -> list[float]:
    """Seconds of each try; another one follows where a try took longer than expected and than the next one did."""
    tries = [send()]
    while len(tries) < _TRIES and not math.isinf(tries[-1]) and not _close(tries[-1], expected_s):
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
        if not _breaks(running):
            raise
        raise broken(running, "the engine died in its warm-up") from None
    raise_if_interrupted(loaded)
    raise_if_broken(running, target, loaded, "in its warm-up")
    if any(trace.status != "ok" for trace in loaded.traces):
        return math.inf
    return ns_to_s(loaded.end_ns - min(trace.t_send_ns or 0 for trace in loaded.traces))


def _breaks(running: RunningEngine) -> bool:
    """Whether it ends or tells of a fault within a moment: what answers may be gone before its parent knows."""
    until_s = time.monotonic() + _MOMENT_S
    while running.alive() and running.fault() is None:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.05)
    return True


def raise_if_interrupted(loaded: Loaded) -> None:
    """The load generator ends quietly on Ctrl-C; here it must end the trial, since half a trial is none."""
    if loaded.stopped_because == "interrupted":
        raise KeyboardInterrupt
