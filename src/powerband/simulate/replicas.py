"""Several copies of an engine behind a router: which copy gets a request, and what comes of it."""

import math
from typing import Literal

import msgspec

from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.units import NS_PER_S
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.simulate.clock import Clock
from powerband.simulate.loop import DETAILED_TOKENS, to_traces
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime
from powerband.simulate.stepper import Stepper

# round_robin: in turn; least_loaded: fewest requests not yet answered, the first of equals.
Router = Literal["round_robin", "least_loaded"]


def simulate_replicas(
    config: EngineConfig,
    workload: Workload,
    step_time: StepTime,
    limits: Limits,
    *,
    replicas: int,
    router: Router = "least_loaded",
    deadline_s: float | None = None,
) -> Run:
    """As ``simulate``, with ``replicas`` engines of the same config; arrivals only (no closed loop).

    The router sees a replica's load at the instant of an arrival, and its decision takes no time.
    """
    assert workload.concurrency is None, "a closed loop is per client: give each replica its own workload"
    clock = Clock(step_time, limits.speculation)
    engines = [Stepper(workload.requests, 0, clock, limits, 0.0) for _ in range(replicas)]
    for engine in engines:
        engine.share_prefixes(workload)
    chosen: list[int] = []
    end_s = float("inf") if deadline_s is None else deadline_s
    for index, request in enumerate(workload.requests):
        at_s = request.offset_ns / NS_PER_S
        if at_s >= end_s:
            break
        for engine in engines:
            engine.advance(at_s)
        loads = [engine.outstanding for engine in engines]
        place = index % replicas if router == "round_robin" else loads.index(min(loads))
        engines[place].submit(index, at_s)
        chosen.append(place)
    for engine in engines:
        engine.advance(end_s)
        engine.close()
    last_s = max((engine.last_step_s for engine in engines), default=0.0)
    return _merge(config, workload, engines, chosen, last_s if deadline_s is None else min(last_s, end_s))


def deal(workload: Workload, replicas: int) -> tuple[Workload, int]:
    """What one replica gets, and how many of them get anything."""
    if replicas == 1:
        return workload, 1
    if workload.concurrency is None:
        part = msgspec.structs.replace(workload, requests=workload.requests[::replicas])
        return part, min(replicas, len(workload.requests))
    busy = min(replicas, workload.concurrency)
    return msgspec.structs.replace(
        workload, requests=workload.requests[::busy], concurrency=math.ceil(workload.concurrency / busy)
    ), busy


def _merge(config: EngineConfig, workload: Workload, engines: list[Stepper], chosen: list[int], end_s: float) -> Run:
    detailed = workload.output_tokens <= DETAILED_TOKENS
    by_engine = [to_traces(engine, end_s, detailed) for engine in engines]
    traces: list[RequestTrace] = []
    for index in range(len(workload.requests)):
        if index < len(chosen):
            traces.append(by_engine[chosen[index]][index])
        else:  # never sent: the deadline came first
            unsent = by_engine[0][index]
            traces.append(msgspec.structs.replace(unsent, t_sched_ns=workload.requests[index].offset_ns))
    return Run(
        run_id=f"simulated-{config.key}-x{len(engines)}",
        basis="simulated",
        config=config,
        effective=Missing(missing="no engine was started"),
        workload=workload,
        traces=tuple(traces),
        end_ns=round(end_s * NS_PER_S),
        notes=(f"{len(engines)} replicas, {[chosen.count(place) for place in range(len(engines))]} requests each",),
    )
