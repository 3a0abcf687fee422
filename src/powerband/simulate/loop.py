"""A workload through a model of the engine: the same evidence as a measurement, basis ``simulated``."""

import math

import numpy as np
from numpy.typing import NDArray

from powerband.records.config import EngineConfig
from powerband.records.request import RequestStatus, RequestTrace
from powerband.records.run import Run
from powerband.records.units import NS_PER_S
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.simulate.clock import Clock
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime
from powerband.simulate.stepper import Stepper

# Every token's time up to this many output tokens; beyond it first and last only (TTFT, TPOT, E2E stay exact).
DETAILED_TOKENS = 200_000

Times = NDArray[np.float64]


def simulate(
    config: EngineConfig,
    workload: Workload,
    step_time: StepTime,
    limits: Limits,
    *,
    deadline_s: float | None = None,
    detailed: bool | None = None,
) -> Run:
    """What serving ``workload`` would look like; deterministic.

    Requests that do not end by ``deadline_s`` are dropped, those longer than a slot are refused (status ``error``).
    ``detailed`` True: a chunk per token; False: the first token and the rest as one chunk; None: by the number of
    output tokens. With False the gaps between tokens are each request's mean, so the ITL spread is too small.
    """
    stepper = Stepper(
        workload.requests,
        workload.concurrency,
        Clock(step_time),
        limits,
        math.inf if deadline_s is None else deadline_s,
    )
    stepper.run()
    stepper.close()
    if detailed is None:
        detailed = workload.output_tokens <= DETAILED_TOKENS
    end_s = stepper.now if deadline_s is None else min(stepper.now, deadline_s)
    traces = _traces(stepper, end_s, detailed)
    notes = [] if detailed else ["token gaps are each request's mean: the ITL spread is understated"]
    if stepper.preemptions:
        notes.append(f"{stepper.preemptions} preemptions, each computed again")
    return Run(
        run_id=f"simulated-{config.key}",
        basis="simulated",
        config=config,
        effective=Missing(missing="no engine was started"),
        workload=workload,
        traces=traces,
        end_ns=round(end_s * NS_PER_S),
        notes=tuple(notes),
    )


def _traces(stepper: Stepper, end_s: float, detailed: bool) -> tuple[RequestTrace, ...]:
    end_ns = round(end_s * NS_PER_S)
    tokens = _tokens_by(stepper, end_s)
    times = _detailed_times(stepper, tokens) if detailed else _first_and_last(stepper, tokens)
    arrived = np.nan_to_num(np.array(stepper.arrived_s) * NS_PER_S, nan=float(end_ns))
    made = []
    for index, (spec, sched, chunks) in enumerate(
        zip(stepper.requests, np.rint(arrived).astype(np.int64).tolist(), times, strict=True)
    ):
        given = tokens[index]
        asked = max(spec.output_tokens, 1)
        status: RequestStatus = "ok" if given == asked else "dropped"
        error = None
        if index in stepper.refused:
            status, error = "error", "http_400: longer than a slot can hold"
        made.append(
            RequestTrace(
                index=index,
                status=status,
                input_tokens=spec.input_tokens,
                output_tokens_asked=spec.output_tokens,
                t_sched_ns=sched,
                t_send_ns=None if math.isnan(stepper.arrived_s[index]) else sched,
                t_end_ns=chunks[-1] if status == "ok" else (sched if error else None),
                t_chunks_ns=chunks,
                chunk_tokens=(1,) * given if detailed or given < 2 else (1, given - 1),
                error=error,
            )
        )
    return tuple(made)


def _tokens_by(stepper: Stepper, end_s: float) -> list[int]:
    """Tokens of each request given by ``end_s``; a step that ended later gave nothing in time."""
    last_step = stepper.step
    while last_step and _step_end_s(stepper, np.array([last_step]))[0] > end_s + 1e-9:
        last_step -= 1
    return [
        sum(min(tokens, max(last_step - first + 1, 0)) for first, tokens in stretches)
        for stretches in stepper.stretches
    ]


def _step_end_s(stepper: Stepper, steps: NDArray[np.int64]) -> Times:
    """When each step ended: start of its segment + k first durations + their growth."""
    before = np.asarray(stepper.segment_step, dtype=np.int64)
    segment = np.searchsorted(before, steps, side="left") - 1
    k = (steps - before[segment]).astype(np.float64)
    start = np.asarray(stepper.segment_s)[segment]
    first = np.asarray(stepper.segment_first_s)[segment]
    growth = np.asarray(stepper.segment_growth_s)[segment]
    end: Times = start + k * first + growth * k * (k - 1) / 2
    return end


def _to_ns(seconds: Times) -> list[int]:
    whole: list[int] = np.rint(seconds * NS_PER_S).astype(np.int64).tolist()
    return whole


def _first_and_last(stepper: Stepper, tokens: list[int]) -> list[tuple[int, ...]]:
    firsts, lasts = [], []
    for stretches, count in zip(stepper.stretches, tokens, strict=True):
        if count:
            firsts.append(stretches[0][0])
            lasts.append(_step_of_token(stretches, count))
    ends = _to_ns(_step_end_s(stepper, np.array(firsts + lasts, dtype=np.int64))) if firsts else []
    pairs = iter(zip(ends[: len(firsts)], ends[len(firsts) :], strict=True))
    return [() if not count else next(pairs) if count > 1 else next(pairs)[:1] for count in tokens]


def _step_of_token(stretches: tuple[tuple[int, int], ...], count: int) -> int:
    for first, given in stretches:
        if count <= given:
            return first + count - 1
        count -= given
    raise AssertionError("more tokens than were given")


def _detailed_times(stepper: Stepper, tokens: list[int]) -> list[tuple[int, ...]]:
    steps = [
        np.concatenate([np.arange(first, first + given) for first, given in stretches])[:count]
        for stretches, count in zip(stepper.stretches, tokens, strict=True)
        if count
    ]
    ends = _to_ns(_step_end_s(stepper, np.concatenate(steps))) if steps else []
    times: list[tuple[int, ...]] = []
    place = 0
    for count in tokens:
        times.append(tuple(ends[place : place + count]))
        place += count
    return times
