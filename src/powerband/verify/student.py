"""Quantiles of Student's t: what a mean of two or three runs honestly allows."""

import math

import numpy as np

_GRID = np.linspace(0.0, np.pi / 2, 20001)
# The normal distribution to four digits.
_LARGE_DF = 1e5


def t_quantile(level: float, df: float) -> float:
    """The t within whose plus and minus a share ``level`` of a t distribution lies; ``df`` may be fractional, >= 1.

    With t = sqrt(df) tan(a), the share within is the integral of cos(a)^(df-1) from 0 to a over that to pi/2.
    """
    df = min(max(df, 1.0), _LARGE_DF)
    density = np.cos(_GRID) ** (df - 1)
    total = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = float(np.interp(level * total[-1], total, _GRID))
    return math.sqrt(df) * math.tan(angle)
