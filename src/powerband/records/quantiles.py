"""A distribution of any number of values in bounded memory."""

import math
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

EXACT = 1 << 21  # values kept as they are: 16 MiB
_STEP = 1e-3  # width of a bin, in logarithms: a percentile is off by at most half of that
_LOWEST, _HIGHEST = 1e-9, 1e6
_BINS = math.ceil(math.log(_HIGHEST / _LOWEST) / _STEP)


class Quantiles:
    """``add`` values of 0 or more; the first ``EXACT`` give exact percentiles, more of them percentiles within 0.05 %.

    Count and mean are exact always. Above ``EXACT`` values memory is 276 kB and no longer grows.
    """

    def __init__(self) -> None:
        self._values = array("d")
        self._bins: npt.NDArray[np.int64] | None = None
        self._sum, self._binned = 0.0, 0

    def add(self, values: Iterable[float]) -> None:
        self._values.extend(values)
        if len(self._values) >= EXACT:
            self._to_bins()

    @property
    def mean(self) -> float:
        """nan where there is no value."""
        count = len(self)
        return (self._sum + float(_as_numpy(self._values).sum())) / count if count else math.nan

    def __len__(self) -> int:
        return self._binned + len(self._values)

    def percentiles(self, percents: list[float]) -> list[float]:
        """Linear between order statistics, as numpy's; the middle of the bin where values were binned."""
        if self._bins is None:
            return [float(value) for value in np.percentile(_as_numpy(self._values), percents)]
        self._to_bins()
        up_to = np.cumsum(self._bins)
        ranks = np.asarray(percents) / 100 * (self._binned - 1)
        found = np.searchsorted(up_to, ranks, side="right")
        return [_LOWEST * math.exp((int(place) + 0.5) * _STEP) for place in found]

    def _to_bins(self) -> None:
        values = _as_numpy(self._values)
        if self._bins is None:
            self._bins = np.zeros(_BINS, dtype=np.int64)
        places = np.log(np.clip(values, _LOWEST, _HIGHEST * 0.999) / _LOWEST) / _STEP
        self._bins += np.bincount(places.astype(np.int64), minlength=_BINS)[:_BINS]
        self._sum += float(values.sum())
        self._binned += values.size
        self._values = array("d")


def _as_numpy(values: "array[float]") -> npt.NDArray[np.float64]:
    return np.frombuffer(values, dtype=np.float64) if values else np.zeros(0)
