"""Expected improvement: how much a config should beat the best one by, on average over what is not known."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# 24 equal slices of the standard normal, each by the median of its slice (computed here, not copied from a table).
_SLICES = 24


def _normal_quantile(p: float) -> float:
    """Inverse of the normal distribution function by bisection on erf."""
    low, high = -8.0, 8.0
    for _ in range(80):
        middle = (low + high) / 2
        if 0.5 * (1 + math.erf(middle / math.sqrt(2))) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


_POINTS = np.array([_normal_quantile((i + 0.5) / _SLICES) for i in range(_SLICES)])


def expected_improvement(log_mean: Array, log_sd: Array, offset: float, ceiling: Array, best: float) -> Array:
    """E[max(v - best, 0)] for v = exp(N(log_mean, log_sd)) - offset, never above ``ceiling``."""
    values = np.exp(log_mean[:, None] + log_sd[:, None] * _POINTS[None, :]) - offset
    values = np.minimum(values, ceiling[:, None])
    gain: Array = np.maximum(values - best, 0.0).mean(axis=1)
    return gain
