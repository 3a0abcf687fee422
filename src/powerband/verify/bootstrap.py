"""Intervals by the paired bootstrap: prompts are drawn, and what both engines did with a prompt stays together."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from powerband.records.value import Interval

LEVEL = 0.9
_DRAWS = 2000
Floats = NDArray[np.float64]


def mean_interval(
    sums: Sequence[float],
    weights: Sequence[float],
    *,
    transform: Callable[[Floats], Floats] = lambda values: values,
    studentised: bool = True,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, Interval]:
    """The weighted mean ``transform(sum(sums) / sum(weights))`` over prompts, with its bootstrap-t interval.

    Not ``studentised`` gives plain percentiles, for what is counted: where a few prompts of many differ, a draw without
    any of them has no spread to measure in.

    One entry a prompt: the tokens of one prompt depend on each other, so a prompt is drawn whole. Each draw is measured
    in its own standard error, because means of few skewed values (divergences are) give plain percentiles that are too
    short on the side that matters; a test holds the coverage. At least one weight must be above 0.
    """
    x, w = np.asarray(sums, dtype=float), np.asarray(weights, dtype=float)
    x, w = x[w > 0], w[w > 0]
    total = float(w.sum())
    mean, error = _mean_and_error(x[None, :], w[None, :])
    value = float(transform(mean)[0])
    if len(x) < 2 or error[0] == 0:
        return value, Interval(low=value, high=value, level=level)
    chosen = np.random.default_rng(seed).integers(0, len(x), size=(_DRAWS, len(x)))
    drawn, errors = _mean_and_error(x[chosen], w[chosen])
    if not studentised:
        low, high = (float(v) for v in transform(np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])))
        return value, Interval(low=low, high=high, level=level)
    # A draw of equal prompts has no spread of its own; it may not claim an endless distance.
    floor = 0.05 * float(error[0])
    t = (drawn - mean[0]) / np.maximum(errors, floor)
    low_t, high_t = np.quantile(t, [(1 - level) / 2, (1 + level) / 2])
    ends = np.array([mean[0] - high_t * error[0], mean[0] - low_t * error[0]])
    spread = float(np.abs(x / w).max()) * total  # keeps the ends finite whatever the draws were
    low, high = (float(v) for v in transform(np.clip(ends, -spread, spread)))
    return value, Interval(low=low, high=high, level=level)


def _mean_and_error(x: Floats, w: Floats) -> tuple[Floats, Floats]:
    """Ratio of sums and its standard error (Taylor linearisation), for each row."""
    total = w.sum(axis=1)
    mean = x.sum(axis=1) / total
    rest = x - mean[:, None] * w
    n = x.shape[1]
    return mean, np.sqrt((rest**2).sum(axis=1) * n / max(n - 1, 1)) / total
