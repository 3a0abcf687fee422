"""What a config is expected to deliver on a workload, with an interval."""

import math
from collections.abc import Callable

import msgspec

from powerband.records.config import EngineConfig
from powerband.records.metrics import Distribution
from powerband.records.objective import objective_value
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


def predict(
    config: EngineConfig,
    workload: Workload,
    step_time: StepTime,
    limits: Limits,
    *,
    objective: Objective,
    slo: Slo | None = None,
    deadline_s: float | None = None,
) -> Predicted:
    """Simulate ``config`` with the expected step time and with those at both ends of its 90 % interval."""
    runs = simulate_interval(config, workload, step_time, limits, deadline_s=deadline_s)
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


class Predictor:
    """``predict`` over many configs of one engine, model and device: configs that differ in nothing the model of the
    engine knows are simulated once.

    ``kv_tokens_of`` says what the KV cache of a config holds, by its ledger; None where nothing says so.
    """

    def __init__(
        self,
        step_time: StepTime,
        workload: Workload,
        *,
        objective: Objective,
        slo: Slo | None = None,
        deadline_s: float | None = None,
        kv_tokens_of: Callable[[EngineConfig], int | None] | None = None,
    ) -> None:
        self._step, self._workload = step_time, workload
        self._objective: Objective = objective
        self._slo, self._deadline_s, self._kv_tokens_of = slo, deadline_s, kv_tokens_of
        self._known: dict[tuple[bytes, int], Predicted] = {}

    def __call__(self, config: EngineConfig) -> Predicted:
        step = self._step.at(config)
        limits = limits_of(config, self._kv_tokens_of(config) if self._kv_tokens_of else None)
        key = (msgspec.json.encode([step.terms, limits]), step.unseen)
        if key not in self._known:
            self._known[key] = predict(
                config,
                self._workload,
                step,
                limits,
                objective=self._objective,
                slo=self._slo,
                deadline_s=self._deadline_s,
            )
        return self._known[key]


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


def _percentile(distribution: Distribution | Missing, name: str) -> float | None:
    return None if isinstance(distribution, Missing) else float(getattr(distribution, name))
