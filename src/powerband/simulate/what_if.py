"""One question answered without an engine: this config, this traffic, what would come of it."""

import math

import msgspec

from powerband.records.config import EngineConfig
from powerband.records.counting import NORMAL_90, with_counting
from powerband.records.errors import RequestError
from powerband.records.metrics import Distribution, Metrics
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.value import Basis, Interval, Record
from powerband.records.workload import Workload
from powerband.simulate.figures import simulate_figures
from powerband.simulate.loop import simulate
from powerband.simulate.predict import step_spread
from powerband.simulate.replicas import Router, simulate_replicas
from powerband.simulate.scheduler import Limits, Speculation, limits_of
from powerband.simulate.shortfall import explain_shortfall
from powerband.simulate.step_time import StepTime


class WhatIf(Record):
    """Expected metrics, with the 90 % interval of each that the step time's uncertainty gives (and, of good requests,
    chance).

    ``holds``: whether the promise is kept, None without one. ``surely`` is False where one end of the interval says
    otherwise. ``step_basis``: ``computed`` from the datasheet or ``measured`` by calibrating runs.
    """

    config: EngineConfig
    basis: Basis = "simulated"
    step_basis: Basis = "computed"
    metrics: Metrics | None = None
    intervals: dict[str, Interval] = msgspec.field(default_factory=dict)
    holds: bool | None = None
    surely: bool | None = None
    shortfall: str | None = None  # why the promise is not kept
    refused: str | None = None
    notes: tuple[str, ...] = ()


def what_if(
    config: EngineConfig,
    workload: Workload,
    step_time: StepTime,
    *,
    kv_tokens: int | None = None,
    slo: Slo | None = None,
    deadline_s: float | None = None,
    replicas: int = 1,
    router: Router = "least_loaded",
    speculation: Speculation | None = None,
) -> WhatIf:
    """Simulate ``config`` on ``workload`` three times: as expected, and at both ends of the step time's interval.

    ``replicas`` above 1 put that many engines behind a router. Raises RequestError for those under a closed loop.
    """
    if replicas > 1 and workload.concurrency is not None:
        raise RequestError("replicas need arrivals, and this is a closed loop", hint="such as arrivals=poisson(10/s)")
    step = step_time.at(config)
    limits = msgspec.structs.replace(limits_of(config, kv_tokens, step.model), speculation=speculation)
    reason = limits.refuses_all(workload)
    if reason:
        return WhatIf(config=config, step_basis=step.basis, holds=None if slo is None else False, refused=reason)
    share = msgspec.structs.replace(workload, requests=workload.requests[::replicas])  # what one replica gets
    spread = step_spread(step, simulate_figures(share, step, limits, deadline_s=deadline_s), limits)
    ratio = math.exp(NORMAL_90 * spread)

    def run(scaled: StepTime) -> Run:
        if replicas == 1:
            return simulate(config, workload, scaled, limits, deadline_s=deadline_s)
        return simulate_replicas(
            config, workload, scaled, limits, replicas=replicas, router=router, deadline_s=deadline_s
        )

    runs = [run(step.scaled(factor)) for factor in (1.0, 1 / ratio, ratio)]
    middle, fast, slow = (found.metrics(slo) for found in runs)
    kept = None if slo is None else [(metrics.attainment or 0.0) >= slo.attainment for metrics in (middle, fast, slow)]
    return WhatIf(
        config=config,
        step_basis=step.basis,
        metrics=middle,
        intervals=_intervals(middle, fast, slow),
        holds=None if kept is None else kept[0],
        surely=None if kept is None else len(set(kept)) == 1,
        shortfall=None if slo is None else explain_shortfall(step, workload, slo, middle),
        notes=(*_turned_away(workload, limits), *runs[0].notes),
    )


def _turned_away(workload: Workload, limits: Limits) -> tuple[str, ...]:
    """The figures are of the others: a count in words where some requests are too long to be served."""
    count = sum(limits.never_fits(one.input_tokens + one.output_tokens) for one in workload.requests)
    return (f"{count:,} of {len(workload.requests):,} requests are refused: too long to be served",) if count else ()


def figures_of(metrics: Metrics) -> dict[str, float]:
    """The figures that get an interval, by name; those that are missing are left out."""
    figures = {"output_tokens_per_s": metrics.output_tokens_per_s, "request_rate_per_s": metrics.request_rate_per_s}
    if metrics.goodput_per_s is not None and metrics.attainment is not None:
        figures |= {"goodput_per_s": metrics.goodput_per_s, "attainment": metrics.attainment}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        found = getattr(metrics, name)
        if isinstance(found, Distribution):
            stem = name.removesuffix("_s")
            figures |= {f"{stem}_p50_s": found.p50, f"{stem}_p99_s": found.p99}
    return figures


def _intervals(middle: Metrics, fast: Metrics, slow: Metrics) -> dict[str, Interval]:
    others = (figures_of(fast), figures_of(slow))
    intervals = {}
    for name, value in figures_of(middle).items():
        ends = [value, *(other[name] for other in others if name in other)]
        intervals[name] = Interval(low=min(ends), high=max(ends))
        whole = {"goodput_per_s": middle.duration_s, "attainment": float(middle.requests)}.get(name, 0.0)
        if whole > 0:
            intervals[name] = with_counting(value, intervals[name], requests=middle.requests, per_request=1 / whole)
    return intervals
