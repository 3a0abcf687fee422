"""How much equal runs differ: the spread between repeats, and what it lets a comparison see."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerband.verify.student import t_quantile
from powerband.verify.values import Floats, Ints, Metric, RunValues, resample

# Draws of requests; their spread is one part of the variance, and 200 draws give it to about 5 %.
_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Spread:
    """Relative standard deviation of one run around the mean of its group, with the degrees of freedom behind it."""

    relative_sd: float
    df: int


def pool_spread(groups: Sequence[Sequence[float]]) -> Spread | None:
    """Pool the repeats of several configs: equal relative noise is assumed, their levels may differ.

    None where no group has two runs and a mean above 0.
    """
    squares, df = 0.0, 0
    for group in groups:
        mean = float(np.mean(group)) if len(group) else 0.0
        if len(group) < 2 or mean <= 0:
            continue
        squares += sum((value / mean - 1) ** 2 for value in group)
        df += len(group) - 1
    return Spread(math.sqrt(squares / df), df) if df else None


def noise_floor(spread: Spread | None, repeats_before: int, repeats_after: int, level: float = 0.9) -> float | None:
    """Half-width of the ratio that two equal configs show with so many repeats; None without repeats."""
    if spread is None or min(repeats_before, repeats_after) < 1:
        return None
    error = spread.relative_sd * math.sqrt(1 / repeats_before + 1 / repeats_after)
    return math.expm1(min(t_quantile(level, spread.df) * error, 50.0))


def request_variance(metric: Metric, before: Sequence[RunValues], after: Sequence[RunValues], seed: int = 0) -> float:
    """Variance of the log ratio over which requests the traffic happened to hold.

    Where all runs served the same requests these are drawn once for all runs (a request that is long is long before
    and after); otherwise for each run by itself. Requests within a run depend on each other, so this alone would be
    too small: it is added to the spread between runs, never used instead of it.
    """
    generator = np.random.default_rng(seed)
    shared = len({values.index for values in (*before, *after)}) == 1
    common = draw_counts(generator, len(before[0].index)) if shared and before else None

    def mean_of(group: Sequence[RunValues]) -> Floats:
        rows = []
        for values in group:
            counts = common if common is not None else draw_counts(generator, len(values.index))
            size = max(len(values.index), 1)
            scale = 1.0 / size if metric.quantile is None else 1.0
            rows.append(resample(metric, values, counts) * scale / _duration(metric, values))
        return np.asarray(np.mean(rows, axis=0), dtype=float)

    first, second = mean_of(before), mean_of(after)
    usable = (first > 0) & (second > 0) & np.isfinite(first) & np.isfinite(second)
    if np.count_nonzero(usable) < _DRAWS // 2:
        return 0.0
    return float(np.var(np.log(second[usable] / first[usable]), ddof=1))


def _duration(metric: Metric, values: RunValues) -> float:
    rate = metric.name.endswith("_per_s")
    return values.metrics.duration_s or 1.0 if rate else 1.0


def draw_counts(generator: np.random.Generator, size: int) -> Ints:
    """Bootstrap draws of ``size`` requests, as counts: one row a draw."""
    if size == 0:
        return np.zeros((_DRAWS, 0), dtype=np.int64)
    return generator.multinomial(size, np.full(size, 1 / size), size=_DRAWS)
