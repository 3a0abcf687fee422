"""What a config is expected to deliver on a workload, with an interval."""

import math

from powerband.records.config import EngineConfig
from powerband.records.metrics import Distribution, Metrics
from powerband.records.rounds import Objective
from powerband.records.run import Predicted, Run
from powerband.records.slo import Slo
from powerband.records.units import ns_to_s
from powerband.records.value import Interval, Missing
from powerband.records.workload import Workload
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import Limits, limits_of
from powerband.simulate.step_time import StepTime

NORMAL_90 = 1.6449  # half-width of a central 90 % interval in standard deviations


def predict_config(
    config: EngineConfig,
    workload: Workload,
    step_time: StepTime,
    *,
    objective: Objective,
    slo: Slo | None = None,
    kv_tokens: int | None = None,
    deadline_s: float | None = None,
) -> Predicted:
    """Simulate ``config`` with the expected step time and with those at both ends of its 90 % interval.

    ``step_time`` may be of another config of the same engine, model and device; it is carried over.
    """
    step = step_time.at(config)
    limits = limits_of(config, kv_tokens)
    runs = simulate_interval(config, workload, step, limits, deadline_s=deadline_s)
    middle, fast, slow = (run.metrics(slo) for run in runs)
    ends = sorted(objective_value(metrics, objective) for metrics in (middle, fast, slow))
    return Predicted(
        objective=objective_value(middle, objective),
        interval=Interval(low=ends[0], high=ends[-1]),
        output_tokens_per_s=middle.output_tokens_per_s,
        ttft_p50_s=_percentile(middle.ttft_s, "p50"),
        ttft_p99_s=_percentile(middle.ttft_s, "p99"),
        tpot_p50_s=_percentile(middle.tpot_s, "p50"),
        tpot_p99_s=_percentile(middle.tpot_s, "p99"),
        attainment=middle.attainment,
    )


def simulate_interval(
    config: EngineConfig,
    workload: Workload,
    step: StepTime,
    limits: Limits,
    *,
    deadline_s: float | None = None,
) -> tuple[Run, Run, Run]:
    """Runs with the expected step time, and with the fast and the slow end of its 90 % interval."""
    middle = simulate(config, workload, step, limits, deadline_s=deadline_s, detailed=False)
    ratio = math.exp(NORMAL_90 * step_spread(step, middle, limits))
    fast = simulate(config, workload, step.scaled(1 / ratio), limits, deadline_s=deadline_s, detailed=False)
    slow = simulate(config, workload, step.scaled(ratio), limits, deadline_s=deadline_s, detailed=False)
    return middle, fast, slow


def step_spread(step: StepTime, run: Run, limits: Limits) -> float:
    """Relative standard deviation of the step time at the run's mean batch, contexts and share of prompt tokens."""
    answered = [trace for trace in run.traces if len(trace.t_chunks_ns) > 1]
    if not answered:
        return step.spread(step.parts(sequences=1, context_tokens=0, prefill_tokens=0, pairs=0, sampled=1))
    decoding_s = sum(ns_to_s(trace.t_chunks_ns[-1] - trace.t_chunks_ns[0]) for trace in answered)
    start, end = min(t.t_chunks_ns[0] for t in answered), max(t.t_chunks_ns[-1] for t in answered)
    sequences = min(max(1, round(decoding_s / max(ns_to_s(end - start), 1e-9))), limits.slots)
    prompt = sum(trace.input_tokens for trace in answered)
    output = sum(trace.output_tokens for trace in answered)
    prefill = round(sequences * prompt / output)
    mean_prompt = prompt / len(answered)
    parts = step.parts(
        sequences=sequences,
        context_tokens=sequences * (prompt + output / 2) / len(answered),
        prefill_tokens=prefill,
        pairs=prefill * mean_prompt / 2,
        sampled=sequences,
    )
    return step.spread(parts)


def objective_value(metrics: Metrics, objective: Objective) -> float:
    """The figure that is to be made large."""
    if objective == "goodput_per_s":
        return metrics.goodput_per_s or 0.0
    return metrics.output_tokens_per_s


def _percentile(distribution: Distribution | Missing, name: str) -> float | None:
    return None if isinstance(distribution, Missing) else float(getattr(distribution, name))
