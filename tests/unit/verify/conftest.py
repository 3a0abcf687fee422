"""Runs made up with a known effect and known noise, so that a comparison is judged as statistics are."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.value import Missing
from powerband.records.workload import Workload

NS = 1_000_000_000
SLO = Slo(ttft_s=0.5, tpot_s=0.05, attainment=0.95)


@dataclass
class Made:
    """``speed`` divides every time; ``run_sd`` is the relative noise a whole run shares; times in seconds."""

    speed: float = 1.0
    run_sd: float = 0.02
    request_sd: float = 0.3
    ttft_s: float = 0.2
    gap_s: float = 0.02
    requests: int = 60
    seed: int = 0
    traffic_seed: int = 7
    closed: bool = True


def make_run(made: Made) -> Run:
    """A closed loop of one: each request starts when the one before ends, so throughput follows speed.

    Lengths come from ``traffic_seed`` and are equal in all runs of a traffic; noise comes from ``seed``.
    """
    lengths, noise = random.Random(made.traffic_seed), random.Random(made.seed)
    shared = noise.lognormvariate(0, made.run_sd) if made.run_sd else 1.0
    now, traces = 0.0, []
    for index in range(made.requests):
        tokens = lengths.randint(5, 30)
        wobble = noise.lognormvariate(0, made.request_sd) if made.request_sd else 1.0
        first = now + made.ttft_s * shared * wobble / made.speed
        times = [first + made.gap_s * shared * k / made.speed for k in range(tokens)]
        traces.append(
            RequestTrace(
                index=index,
                status="ok",
                input_tokens=50,
                output_tokens_asked=tokens,
                t_sched_ns=round(now * NS),
                t_send_ns=round(now * NS),
                t_end_ns=round(times[-1] * NS),
                t_chunks_ns=tuple(round(t * NS) for t in times),
                chunk_tokens=(1,) * tokens,
            )
        )
        now = times[-1] if made.closed else now + 0.5
    none = Missing(missing="made up")
    return Run(
        run_id=f"made-{made.seed}",
        basis="measured",
        config=EngineConfig(engine="made", model="up"),
        effective=none,
        workload=Workload(requests=(), source="test"),
        traces=tuple(traces),
        end_ns=max(trace.t_end_ns or 0 for trace in traces),
    )


@pytest.fixture
def made() -> type[Made]:
    return Made


@pytest.fixture
def make() -> Callable[[Made], Run]:
    return make_run


@pytest.fixture
def slo() -> Slo:
    return SLO
