"""What a config is expected to deliver on a workload, with an interval."""

import math
from collections.abc import Callable

import msgspec
import numpy as np

from powerband.records.config import EngineConfig, copies_of
from powerband.records.counting import NORMAL_90, with_counting
from powerband.records.rounds import Objective
from powerband.records.run import Predicted, Response
from powerband.records.slo import Slo
from powerband.records.value import Interval
from powerband.records.workload import Workload
from powerband.simulate.figures import Figures, simulate_figures
from powerband.simulate.replicas import deal
from powerband.simulate.roofline import TERM_KNOBS, Terms
from powerband.simulate.scheduler import PAGED, Limits, limits_of
from powerband.simulate.step_time import StepTime

LEAST_REACH = 0.12  # of the step times tried: knobs outside the model change it by as much


def predict(
    config: EngineConfig,
    workload: Workload,
    step_time: StepTime,
    limits: Limits,
    *,
    objective: Objective,
    slo: Slo | None = None,
    deadline_s: float | None = None,
    beat: float = 0.0,
) -> Predicted:
    """Simulate ``config`` with the expected step time and with faster and slower ones.

    The interval is what the step time's own 90 % interval gives and, of a count of good requests, what chance adds;
    ``response`` goes twice as far, so that a search can ask what a speed-up brings that this model does not know of. A
    config that stays below ``beat`` even with the fastest steps is not simulated with slower ones: its interval starts
    at 0.
    """
    curve = trace_curve(workload, step_time, limits, objective, slo, deadline_s, beat, copies_of(config))
    return summarise(curve, objective, step_spread(step_time, curve[0.0], limits))


def trace_curve(
    workload: Workload,
    step_time: StepTime,
    limits: Limits,
    objective: Objective,
    slo: Slo | None,
    deadline_s: float | None,
    beat: float,
    copies: int = 1,
) -> dict[float, Figures]:
    """Figures by the log of the step time's ratio: at 0, at both ends of its interval and at twice that.

    ``copies`` of the model inside the engine: each gets every ``copies``-th request, and one is simulated for all.
    """
    part, busy = deal(workload, copies)

    def figures(shift: float) -> Figures:
        step = step_time if shift == 0 else step_time.scaled(math.exp(shift))
        return simulate_figures(part, step, limits, slo=slo, deadline_s=deadline_s).times(busy)

    curve = {0.0: figures(0.0)}
    reach = max(LEAST_REACH, NORMAL_90 * step_spread(step_time, curve[0.0], limits))
    curve[-2 * reach] = figures(-2 * reach)
    if curve[-2 * reach].objective(objective) >= beat:
        curve |= {shift: figures(shift) for shift in (-reach, reach, 2 * reach)}
    return curve


def summarise(curve: dict[float, Figures], objective: Objective, spread: float) -> Predicted:
    """The prediction that a curve and a spread of the log step time give."""
    now, shifts = curve[0.0], sorted(curve)
    values = [curve[shift].objective(objective) for shift in shifts]
    ends = [float(np.interp(side * NORMAL_90 * spread, shifts, values)) for side in (-1, 0, 1)]
    hopeless = len(shifts) == 2  # nothing was simulated on the slow side
    by_speed = Interval(low=0.0 if hopeless else min(ends), high=max(ends))
    per_request = now.per_request(objective)
    return Predicted(
        objective=now.objective(objective),
        interval=with_counting(now.objective(objective), by_speed, requests=now.requests, per_request=per_request),
        requests=now.requests,
        per_request=per_request,
        output_tokens_per_s=now.output_tokens_per_s,
        ttft_p50_s=now.ttft_p50_s,
        ttft_p99_s=now.ttft_p99_s,
        tpot_p50_s=now.tpot_p50_s,
        tpot_p99_s=now.tpot_p99_s,
        attainment=now.attainment,
        response=Response(
            spread=spread,
            log_step=tuple(shifts),
            objective=tuple(values),
            tpot_p50_s=tuple(curve[shift].tpot_p50_s for shift in shifts),
        ),
    )


class Predictor:
    """``predict`` over many configs of one engine, model and device: configs that differ in nothing the model of the
    engine knows are simulated once.

    ``kv_tokens_of`` says what the KV cache of a config holds, by its ledger; None where nothing says so. ``beat``: as
    for ``predict``, the best measured so far.
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
        beat: float = 0.0,
    ) -> None:
        self._step, self._workload, self._beat = step_time, workload, beat
        self._objective: Objective = objective
        self._slo, self._deadline_s, self._kv_tokens_of = slo, deadline_s, kv_tokens_of
        self._terms: dict[tuple[object, ...], Terms] = {}
        self._curves: dict[bytes, dict[float, Figures]] = {}

    @property
    def simulated(self) -> int:
        """How many different configs were simulated."""
        return len(self._curves)

    def __call__(self, config: EngineConfig) -> Predicted:
        step = self._step_at(config)
        kv_tokens = self._kv_tokens_of(config) if self._kv_tokens_of and config.engine in PAGED else None
        limits = limits_of(config, kv_tokens, step.model)
        copies = copies_of(config)
        key = msgspec.json.encode([step.terms, limits, copies])
        if key not in self._curves:
            self._curves[key] = trace_curve(
                self._workload, step, limits, self._objective, self._slo, self._deadline_s, self._beat, copies
            )
        curve = self._curves[key]
        return summarise(curve, self._objective, step_spread(step, curve[0.0], limits))

    def _step_at(self, config: EngineConfig) -> StepTime:
        key = (config.engine, *(config.knobs.get(name) for name in TERM_KNOBS))
        if key not in self._terms:
            self._terms[key] = self._step.at(config).terms
        return msgspec.structs.replace(self._step, config=config, terms=self._terms[key])


def step_spread(step: StepTime, figures: Figures, limits: Limits) -> float:
    """Relative standard deviation of the step time at the mean batch, contexts and share of prompt tokens."""
    return step.spread(mean_parts(step, figures, limits))


def mean_parts(step: StepTime, figures: Figures, limits: Limits) -> tuple[float, ...]:
    """Datasheet seconds by factor of a step as the simulated run had them on average.

    Of many steps, of which few bind on launches where decoding is in graphs: the mean one does not stand for these.
    """
    if step.terms.graph_tokens:
        step = msgspec.structs.replace(step, terms=msgspec.structs.replace(step.terms, launch_s=0.0))
    sequences = min(max(1, round(figures.batch)), limits.slots)
    prefill = round(sequences * figures.prompt_share)
    return step.parts(
        sequences=sequences,
        context_tokens=sequences * figures.mean_context,
        prefill_tokens=prefill,
        pairs=prefill * figures.mean_prompt / 2,
        sampled=sequences,
    )
