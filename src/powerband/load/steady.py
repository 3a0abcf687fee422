"""Whether what was measured stood still; two runs side by side."""

import math

import numpy as np

from powerband.records.columns import Columns, Floats
from powerband.records.units import format_duration
from powerband.records.value import Interval, Record

_BATCHES = 10
_T90 = 1.833  # Student's t, 9 degrees of freedom, 90 % two-sided
_T99_TREND = 3.355  # 8 degrees of freedom, 99 % two-sided: slope over ten batch means
_LEAST_DRIFT = 0.10  # a trend below this share of the mean, end to end, is not worth a warning


def drift(columns: Columns) -> str | None:
    """A warning where TTFT or TPOT has a trend over the run: the figures then depend on how long it was run.

    Slope of ten batch means in order of schedule, against its own scatter at 99 %; None for a run that stood still or
    has fewer than 50 answers.
    """
    for name in ("ttft_s", "tpot_s"):
        means = batch_means(columns.latencies_s(name))
        if means is None:
            continue
        places = np.arange(_BATCHES) - (_BATCHES - 1) / 2
        slope = float((places * means).sum() / (places**2).sum())
        scatter = means - means.mean() - slope * places
        error = math.sqrt(float((scatter**2).sum()) / (_BATCHES - 2) / float((places**2).sum()))
        change = slope * (_BATCHES - 1)
        if abs(slope) > _T99_TREND * error and abs(change) > _LEAST_DRIFT * float(means.mean()):
            first, last = (format_duration(float(means[place])) for place in (0, -1))
            said = name.removesuffix("_s").upper()
            return f"not steady: {said} went from {first} to {last} over the run; cut the warm-up or run longer"
    return None


def batch_means(values: Floats) -> Floats | None:
    """Of ten batches in order, the first few values left out; None below 50 values."""
    if len(values) < 5 * _BATCHES:
        return None
    means: Floats = values[len(values) % _BATCHES :].reshape(_BATCHES, -1).mean(axis=1)
    return means


class SideBySide(Record):
    """One mean of two runs; the interval of the ratio is from within the runs and knows nothing of other days.

    ``paired``: both sent the same schedule, so that the interval is that of the differences, request by request.
    """

    name: str
    before: float
    after: float
    ratio: float
    interval: Interval | None
    paired: bool = False


def side_by_side(before: Columns, after: Columns, ends_ns: tuple[int, int]) -> list[SideBySide]:
    """Mean TTFT, TPOT and E2E, and output tokens/s, of two runs; a metric that one of them lacks is left out."""
    rows = []
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        first, second = before.latencies_s(name), after.latencies_s(name)
        if len(first) and len(second) and first.mean() > 0 and second.mean() > 0:
            both = _pairs(before, after, name)
            interval = _ratio_interval(first, second) if both is None else _paired_interval(*both)
            rows.append(_row(name, float(first.mean()), float(second.mean()), interval, both is not None))
    rate, later = (
        side.metrics(end_ns=end).output_tokens_per_s for side, end in zip((before, after), ends_ns, strict=True)
    )
    return [*rows, _row("output_tokens_per_s", rate, later, None, False)] if rate > 0 else rows


def _row(name: str, before: float, after: float, interval: Interval | None, paired: bool) -> SideBySide:
    return SideBySide(name=name, before=before, after=after, ratio=after / before, interval=interval, paired=paired)


def _pairs(before: Columns, after: Columns, name: str) -> tuple[Floats, Floats] | None:
    """The latencies of requests that completed in both runs, where both sent one schedule; None where they did not."""
    (due, first), (later_due, second) = before.in_order(name), after.in_order(name)
    if len(due) != len(later_due) or not np.array_equal(due - due[0], later_due - later_due[0]):
        return None
    if not (np.diff(due) > 0).all():
        return None  # which of two at one instant is which cannot be seen here
    there = ~np.isnan(first) & ~np.isnan(second)
    return first[there], second[there]


def _paired_interval(first: Floats, second: Floats) -> Interval | None:
    """Of the ratio of means, in logarithms, from ten batches of differences: what the schedule did to both cancels."""
    means, later_means = batch_means(first), batch_means(second)
    if means is None or later_means is None:
        return None
    apart = later_means / later_means.mean() - means / means.mean()
    half = _T90 * float(apart.std(ddof=1)) / math.sqrt(_BATCHES)
    middle = math.log(float(second.mean()) / float(first.mean()))
    return Interval(low=math.exp(middle - half), high=math.exp(middle + half))


def _ratio_interval(before: Floats, after: Floats) -> Interval | None:
    """Of second over first, in logarithms, from the scatter of ten batch means each."""
    first, second = batch_means(before), batch_means(after)
    if first is None or second is None:
        return None
    errors = [float(side.std(ddof=1)) / math.sqrt(_BATCHES) / float(side.mean()) for side in (first, second)]
    half = _T90 * math.hypot(*errors)
    middle = math.log(float(second.mean()) / float(first.mean()))
    return Interval(low=math.exp(middle - half), high=math.exp(middle + half))
