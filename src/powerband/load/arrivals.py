"""When requests arrive: offsets in seconds from the first one."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.float64]


def poisson(rate_per_s: float, count: int, rng: np.random.Generator) -> Offsets:
    """Independent arrivals: gaps are exponential."""
    return _from_gaps(rng.exponential(1 / rate_per_s, count))


def gamma(rate_per_s: float, cv: float, count: int, rng: np.random.Generator) -> Offsets:
    """Gaps of a gamma distribution with coefficient of variation ``cv``: 1 is Poisson, above 1 is bursty."""
    shape = 1 / cv**2
    return _from_gaps(rng.gamma(shape, 1 / (rate_per_s * shape), count))


def constant(rate_per_s: float, count: int) -> Offsets:
    return np.arange(count) / rate_per_s


def burst(count: int) -> Offsets:
    return np.zeros(count)


def ramp(low_per_s: float, high_per_s: float, span_s: float, count: int) -> Offsets:
    """Evenly spaced in expectation under a rate that goes linearly from low to high over ``span_s``, then stays high.

    Arrival k comes where the integral of the rate reaches k.
    """
    slope = (high_per_s - low_per_s) / span_s
    in_ramp = (low_per_s + high_per_s) / 2 * span_s
    offsets = np.empty(count)
    for k in range(count):
        if k >= in_ramp:
            offsets[k] = span_s + (k - in_ramp) / high_per_s
        elif slope == 0:
            offsets[k] = k / low_per_s
        else:
            offsets[k] = (math.sqrt(low_per_s**2 + 2 * slope * k) - low_per_s) / slope
    return offsets


def steps(rates_per_s: Sequence[float], step_s: float, count: int, rng: np.random.Generator) -> Offsets:
    """Poisson arrivals at each rate in turn for ``step_s``; the last rate goes on until ``count`` are made."""
    offsets: list[float] = [0.0]
    at = 0.0
    for n, rate in enumerate(rates_per_s):
        last = n == len(rates_per_s) - 1
        at = max(at, n * step_s) if n else 0.0
        while len(offsets) < count:
            at += float(rng.exponential(1 / rate))
            if not last and at >= (n + 1) * step_s:
                break
            offsets.append(at)
    return np.array(offsets[:count])


def _from_gaps(gaps: Offsets) -> Offsets:
    """The first request starts the run: its gap is not waited for."""
    offsets = np.cumsum(gaps)
    return offsets - offsets[0] if offsets.size else offsets
