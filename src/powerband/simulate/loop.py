"""A workload through a model of the engine: the same evidence as a measurement, basis ``simulated``."""

import math

import numpy as np

from powerband.records.config import EngineConfig
from powerband.records.request import RequestStatus, RequestTrace
from powerband.records.run import Run
from powerband.records.units import NS_PER_S
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime
from powerband.simulate.stepper import Stepper, run_steps
from powerband.simulate.token_times import given_by

# Every token's time up to this many output tokens; beyond it first and last only (TTFT, TPOT, E2E stay exact).
DETAILED_TOKENS = 200_000


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
    stepper = run_steps(workload, step_time, limits, deadline_s)
    if detailed is None:
        detailed = workload.output_tokens <= DETAILED_TOKENS
    end_s = stepper.end_s
    traces = to_traces(stepper, end_s, detailed)
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


def to_traces(stepper: Stepper, end_s: float, detailed: bool) -> tuple[RequestTrace, ...]:
    """One trace for every request of the workload; those the stepper never saw are dropped ones."""
    end_ns = round(end_s * NS_PER_S)
    tokens, times = given_by(stepper, end_s, detailed=detailed)
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
