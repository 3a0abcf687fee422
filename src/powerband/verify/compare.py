"""Is the change really better? Repeats before and after, an interval for every ratio, one verdict with its reason.

The unit is the run: requests of one run share its queue and its machine, so they are no independent evidence. The
log ratio of two means has two parts of variance: between repeats (pooled over both sides, Student's t with few runs)
and over the requests that the traffic happened to hold (bootstrap). Their degrees of freedom combine by Satterthwaite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.value import Interval, Missing
from powerband.records.verdict import Compared, QualityResult, Verdict
from powerband.verify.decide import PER_CARD, decide, objective_row
from powerband.verify.noise import Spread, noise_floor, pool_spread, request_variance
from powerband.verify.steady import describe_drift
from powerband.verify.student import t_quantile
from powerband.verify.values import Metric, RunValues, metrics_for, read_values

LEVEL = 0.9
# With no good request among n, the share is below 3/n at 95 % (the rule of three).
_RULE_OF_THREE = 3.0

MetricVerdict = Literal["better", "worse", "same", "undecided"]


@dataclass(frozen=True, slots=True)
class _Sides:
    before: list[RunValues]
    after: list[RunValues]
    elsewhere: list[list[RunValues]]
    minimum_effect: float


def compare(
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    slo: Slo | None,
    minimum_effect: float = 0.03,
    quality: QualityResult,
    elsewhere: Sequence[Sequence[Run]] = (),
    cards: tuple[int, int] | None = None,
) -> Verdict:
    """Compare repeats of two configs, best taken in turns (before, after, before, after ...).

    ``minimum_effect`` is the least gain worth a change (0.03: 3 %). ``elsewhere`` may hold repeats of other configs on
    the same machine: they only sharpen the estimate of its noise. Runs that were contended or client-limited, or that
    mix bases, do not count. ``cards``: how many each side takes, where the objective for each card decides; the promise
    may then be met less often than before, down to what was promised. ``keep`` needs the objective (goodput, or output
    tokens/s without an SLO) better with the whole 90 % interval above 1 and by at least ``minimum_effect``, nothing
    promised made worse, and quality passed or not needed. Two equal configs get ``keep`` in about 5 % of comparisons at
    most. Never raises.
    """
    kept_before, left_before = usable_runs(before, "before")
    kept_after, left_after = usable_runs(after, "after")
    sides = _Sides(
        before=[read_values(run, slo) for run in kept_before],
        after=[read_values(run, slo) for run in kept_after],
        elsewhere=[[read_values(run, slo) for run in usable_runs(group, "")[0]] for group in elsewhere],
        minimum_effect=minimum_effect,
    )
    rows, floor = _rows(sides, slo, cards)
    repeats = min(len(sides.before), len(sides.after))
    excluded = len(left_before) + len(left_after)
    basis = {run.basis for run in (*kept_before, *kept_after)}
    verdict, reason = decide(rows, slo, quality, repeats, excluded, floor, minimum_effect, mixed=len(basis) > 1)
    decisive = objective_row(rows, slo)
    return Verdict(
        verdict=verdict,
        reason=reason,
        metrics=tuple(rows),
        noise_floor=floor,
        minimum_effect=minimum_effect,
        quality=quality,
        repeats=repeats,
        excluded=excluded,
        notes=(*left_before, *left_after, *describe_drift(kept_before, kept_after)),
        objective=None if decisive is None else decisive.name,
    )


def _rows(sides: _Sides, slo: Slo | None, cards: tuple[int, int] | None) -> tuple[list[Compared], float | None]:
    """A row for each metric that both sides have, and the noise floor of the objective, which is the first."""
    objective, *others = metrics_for(slo)
    first, spread = compare_metric(objective, sides)
    found = [first, *(compare_metric(metric, sides)[0] for metric in others)]
    if first is not None and cards is not None:
        found.insert(0, per_card(first, cards, sides.minimum_effect, repeated=spread is not None))
    floor = noise_floor(spread, len(sides.before), len(sides.after), LEVEL)
    return [row for row in found if row is not None], floor


def usable_runs(runs: Sequence[Run], side: str) -> tuple[list[Run], list[str]]:
    """The runs that speak for their engine, and a line for each that does not."""
    kept, left = [], []
    for run in runs:
        if run.unfit is not None:
            kind, reason = run.unfit
            left.append(f"{side} {run.run_id} left out: {kind.replace('_', '-')}, {reason}")
        elif not run.traces:
            left.append(f"{side} {run.run_id} left out: it holds no request")
        else:
            kept.append(run)
    return kept, left


def compare_metric(metric: Metric, sides: _Sides) -> tuple[Compared | None, Spread | None]:
    """One row, or None where a side has no value for it."""
    first, second = _read(metric, sides.before), _read(metric, sides.after)
    if not first or not second:
        return None, None
    spread = pool_spread([first, second, *(_read(metric, group) for group in sides.elsewhere)])
    before, after = float(np.mean(first)), float(np.mean(second))
    if before <= 0 or after <= 0:
        return _with_zero(metric, sides, before, second, after), spread
    low, high = ratio_interval(metric, sides, math.log(after / before), spread)
    ratio = after / before
    repeated = spread is not None
    return (
        Compared(
            name=metric.name,
            before=before,
            after=after,
            ratio=ratio,
            interval=Interval(low=low, high=high, level=LEVEL),
            better=metric.better,
            verdict=judge(metric.better, ratio, low, high, sides.minimum_effect) if repeated else "undecided",
        ),
        spread,
    )


def per_card(row: Compared, cards: tuple[int, int], minimum_effect: float, *, repeated: bool) -> Compared:
    """The same for each of the ``cards`` that the sides take."""
    before, after = cards
    each = msgspec.structs.replace(row, name=row.name + PER_CARD, before=row.before / before, after=row.after / after)
    if isinstance(row.ratio, Missing) or row.interval is None:
        return each
    ratio, low, high = (value * before / after for value in (row.ratio, row.interval.low, row.interval.high))
    return msgspec.structs.replace(
        each,
        ratio=ratio,
        interval=msgspec.structs.replace(row.interval, low=low, high=high),
        verdict=judge(row.better, ratio, low, high, minimum_effect) if repeated else row.verdict,
    )


def _read(metric: Metric, group: Sequence[RunValues]) -> list[float]:
    values = [metric.read(run.metrics) for run in group]
    return [value for value in values if value is not None]


def ratio_interval(metric: Metric, sides: _Sides, log_ratio: float, spread: Spread | None) -> tuple[float, float]:
    """Bounds of the ratio at LEVEL; without repeats they cover the requests drawn, and not the noise between runs."""
    over_requests = request_variance(metric, sides.before, sides.after)
    between, df = 0.0, math.inf
    if spread is not None:
        between = spread.relative_sd**2 * (1 / len(sides.before) + 1 / len(sides.after))
        if between > 0:
            df = spread.df * ((between + over_requests) / between) ** 2
    half = t_quantile(LEVEL, min(df, 1e5)) * math.sqrt(between + over_requests)
    half = min(half, 50.0)  # e^50: no information, and still a number
    return math.exp(log_ratio - half), math.exp(log_ratio + half)


def judge(
    better: Literal["higher", "lower"], ratio: float, low: float, high: float, minimum_effect: float
) -> MetricVerdict:
    """Better or worse: the interval excludes 1 and the ratio is worth it; same: the interval excludes what is."""
    if better == "lower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    if low > 1 and ratio >= 1 + minimum_effect:
        return "better"
    if high < 1 and ratio <= 1 / (1 + minimum_effect):
        return "worse"
    if high < 1 + minimum_effect and low > 1 / (1 + minimum_effect):
        return "same"
    return "undecided"


def _with_zero(metric: Metric, sides: _Sides, before: float, second: list[float], after: float) -> Compared:
    """A side that is 0: bounds come from the number of requests that could have been good and were not."""
    if before <= 0 and after <= 0:
        return _row(metric, before, after, Missing(missing="0 on both sides"), None, "same")
    sent_before = sum(len(values.index) for values in sides.before)
    sent_after = sum(len(values.index) for values in sides.after)
    if before <= 0:
        # What the baseline could hide, in the metric's own unit: the rule of three on its requests.
        hidden = _RULE_OF_THREE / max(sent_before, 1) * _if_all_counted(metric, sides.before)
        error = float(np.std(second, ddof=1)) / math.sqrt(len(second)) if len(second) > 1 else math.inf
        least = after - t_quantile(LEVEL, max(len(second) - 1, 1)) * error
        sure = len(sides.before) > 1 and least > hidden * (1 + sides.minimum_effect)
        none = Missing(missing="from 0: a ratio to nothing has no size")
        return _row(metric, before, after, none, None, "better" if sure else "undecided")
    most = _RULE_OF_THREE / max(sent_after, 1) * _if_all_counted(metric, sides.after) / before
    sure = min(len(sides.before), len(sides.after)) > 1 and most < 1 / (1 + sides.minimum_effect)
    interval = Interval(low=0.0, high=most, level=LEVEL)
    return _row(metric, before, after, 0.0, interval, "worse" if sure else "undecided")


def _if_all_counted(metric: Metric, group: Sequence[RunValues]) -> float:
    """The metric's value if every request sent had counted, mean over runs."""
    if metric.name == "attainment":
        return 1.0
    return float(np.mean([len(run.index) / (run.metrics.duration_s or 1.0) for run in group]))


def _row(
    metric: Metric,
    before: float,
    after: float,
    ratio: float | Missing,
    interval: Interval | None,
    verdict: MetricVerdict,
) -> Compared:
    return Compared(
        name=metric.name,
        before=before,
        after=after,
        ratio=ratio,
        interval=interval,
        better=metric.better,
        verdict=verdict,
    )
