"""The few figures that a prediction needs, straight from a simulation: the same as metrics of its run, sooner."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from powerband.records.rounds import Objective
from powerband.records.slo import Slo
from powerband.records.units import NS_PER_S
from powerband.records.value import Record
from powerband.records.workload import Workload
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime
from powerband.simulate.stepper import run_steps
from powerband.simulate.token_times import given_by

Array = NDArray[np.float64]


class Figures(Record):
    """As ``Metrics`` of the simulated run would give them; times are None where no request completed.

    ``batch`` is the mean number of decoding sequences while any was, ``prompt_share`` the prompt tokens per output
    token, ``mean_context`` the mean context of a sequence: what the steps held on average.
    """

    output_tokens_per_s: float
    goodput_per_s: float | None
    attainment: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    batch: float
    prompt_share: float
    mean_context: float
    mean_prompt: float
    requests: int
    duration_s: float

    def objective(self, objective: Objective) -> float:
        if objective == "attainment":
            return self.attainment or 0.0
        return (self.goodput_per_s or 0.0) if objective == "goodput_per_s" else self.output_tokens_per_s

    def times(self, copies: int) -> "Figures":
        """Of so many copies that each get as much; latencies and the share within the promise stay."""
        if copies == 1:
            return self
        return msgspec.structs.replace(
            self,
            output_tokens_per_s=copies * self.output_tokens_per_s,
            goodput_per_s=None if self.goodput_per_s is None else copies * self.goodput_per_s,
            requests=copies * self.requests,
        )

    def per_request(self, objective: Objective) -> float:
        """What one good request more adds to the objective; 0 where it does not count them."""
        if objective == "output_tokens_per_s":
            return 0.0
        whole = self.requests if objective == "attainment" else self.duration_s
        return 1.0 / whole if whole else 0.0


def simulate_figures(
    workload: Workload, step_time: StepTime, limits: Limits, *, slo: Slo | None = None, deadline_s: float | None = None
) -> Figures:
    """Simulate and summarise (the definitions are those of records/metrics.py; a test holds them together)."""
    stepper = run_steps(workload, step_time, limits, deadline_s)
    tokens, times = given_by(stepper, stepper.end_s, detailed=False)
    asked = [max(spec.output_tokens, 1) for spec in workload.requests]
    done = [i for i, (given, wanted) in enumerate(zip(tokens, asked, strict=True)) if given == wanted]
    sched = np.rint(np.array(stepper.arrived_s) * NS_PER_S)
    start_ns = float(np.nanmin(sched)) if len(sched) else 0.0
    duration_s = max(round(stepper.end_s * NS_PER_S) - start_ns, 0.0) / NS_PER_S
    first = np.array([times[i][0] for i in done], dtype=np.float64)
    last = np.array([times[i][-1] for i in done], dtype=np.float64)
    given = np.array([tokens[i] for i in done], dtype=np.float64)
    ttft, e2e = (first - sched[done]) / NS_PER_S, (last - sched[done]) / NS_PER_S
    several = given > 1
    tpot = ((last - first) / NS_PER_S)[several] / (given - 1)[several]
    good = None if slo is None else int(_meets(slo, ttft, e2e, tpot, several).sum())
    prompts = np.array([workload.requests[i].input_tokens for i in done], dtype=np.float64)
    decoding_s = float(((last - first) / NS_PER_S).sum())
    busy_s = float(last.max() - first.min()) / NS_PER_S if done else 0.0
    return Figures(
        output_tokens_per_s=float(given.sum()) / duration_s if duration_s else 0.0,
        goodput_per_s=None if good is None else (good / duration_s if duration_s else 0.0),
        attainment=None if good is None else (good / len(tokens) if tokens else 0.0),
        ttft_p50_s=_percentile(ttft, 50),
        ttft_p99_s=_percentile(ttft, 99),
        tpot_p50_s=_percentile(tpot, 50),
        tpot_p99_s=_percentile(tpot, 99),
        batch=decoding_s / busy_s if busy_s else 1.0,
        prompt_share=float(prompts.sum() / given.sum()) if done else 0.0,
        mean_context=float((prompts + given / 2).mean()) if done else 0.0,
        mean_prompt=float(prompts.mean()) if done else 0.0,
        requests=len(tokens),
        duration_s=duration_s,
    )


def _meets(slo: Slo, ttft: Array, e2e: Array, tpot: Array, several: NDArray[np.bool_]) -> NDArray[np.bool_]:
    good = np.ones(len(ttft), dtype=np.bool_)
    if slo.ttft_s is not None:
        good &= ttft <= slo.ttft_s
    if slo.e2e_s is not None:
        good &= e2e <= slo.e2e_s
    if slo.tpot_s is not None:
        good[several] &= tpot <= slo.tpot_s
    return good


def _percentile(values: Array, level: float) -> float | None:
    return float(np.percentile(values, level)) if len(values) else None
