"""When a run may end before its last request: too many errors, figures precise enough, a server that falls behind."""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from powerband.load.target import Progress, StoppedBecause
from powerband.records.metrics import tpot_s, ttft_s
from powerband.records.request import RequestTrace
from powerband.records.units import percent

_T90 = 1.833  # Student's t, 9 degrees of freedom, 90 % two-sided
_BATCHES = 10
_LEAST_TRACES = 100
_MOST_CELLS = 20_000  # of neighbouring values, kept to judge the precision
_WATCH_S = 12  # seconds of one third of which the backlog is compared with the others'


class Stop(msgspec.Struct, frozen=True):
    """The rules that are on: None or False means off.

    ``precision``: the 90 % interval of mean TTFT and mean TPOT is at most this share of the mean, either side.
    """

    max_errors: int | None = None
    precision: float | None = None
    when_saturated: bool = False


class StopRules:
    """Told once a second how the run goes, says why it should end; ``why`` has the figures."""

    def __init__(self, stop: Stop, *, open_loop: bool) -> None:
        self._stop, self._open_loop = stop, open_loop
        self._backlog: deque[int] = deque(maxlen=3 * _WATCH_S)
        self._ttft_s, self._tpot_s = Cells(), Cells()
        self.why = ""

    def check(self, state: Progress, lately: Sequence[RequestTrace]) -> StoppedBecause | None:
        stop = self._stop
        if stop.max_errors is not None and state.errors >= stop.max_errors:
            self.why = f"{state.errors} errors, {stop.max_errors} allowed"
            return "too_many_errors"
        if stop.when_saturated and self._open_loop:
            self._backlog.append(state.in_flight)
            if is_saturated(self._backlog):
                self.why = f"{state.in_flight} requests wait after {state.elapsed_s:.0f} s, and more each second"
                return "saturated"
        if stop.precision is not None and self._is_precise(lately):
            return "precise_enough"
        return None

    def _is_precise(self, lately: Sequence[RequestTrace]) -> bool:
        done = [trace for trace in lately if trace.status == "ok"]
        self._ttft_s.add(value for trace in done if (value := ttft_s(trace)) is not None)
        self._tpot_s.add(value for trace in done if (value := tpot_s(trace)) is not None)
        widths = [relative_width(cells.means) for cells in (self._ttft_s, self._tpot_s) if cells.means]
        if not widths or self._stop.precision is None or max(widths) > self._stop.precision:
            return False
        self.why = f"mean TTFT and TPOT within {percent(max(widths), 1)} at 90 %"
        return True


class Cells:
    """Means of equally many neighbouring values each: one value at first, twice as many whenever they get too many.

    The means of a run's tenths are those of the values, but for a last cell not yet full; memory has a bound.
    """

    def __init__(self) -> None:
        self.means = array("d")
        self._size, self._sum, self._count = 1, 0.0, 0

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self._sum, self._count = self._sum + value, self._count + 1
            if self._count == self._size:
                self.means.append(self._sum / self._size)
                self._sum, self._count = 0.0, 0
                if len(self.means) == _MOST_CELLS:
                    self.means = array("d", np.asarray(self.means).reshape(-1, 2).mean(axis=1).tolist())
                    self._size *= 2


def relative_width(values: Sequence[float]) -> float:
    """Half of the 90 % interval of the mean over the mean, by ten batches in order of time; inf below 100 values.

    Neighbouring requests share the server's state, so that single values would make the interval too narrow; the means
    of long batches are nearly independent (the method of batch means).
    """
    if len(values) < _LEAST_TRACES:
        return math.inf
    kept = np.asarray(values[len(values) % _BATCHES :], dtype=float)
    means = kept.reshape(_BATCHES, -1).mean(axis=1)
    mean = float(means.mean())
    return _T90 * float(means.std(ddof=1)) / math.sqrt(_BATCHES) / mean if mean > 0 else math.inf


def is_saturated(in_flight: Sequence[int]) -> bool:
    """Whether the requests in flight, one count a second, grow without bound.

    Looks at the last 36 seconds in thirds: each third's mean above the one before by a fifth and by ten requests, and
    no less by the second step than by half of the first. A queue that settles fails the last condition.
    """
    if len(in_flight) < 3 * _WATCH_S:
        return False
    last = np.asarray(list(in_flight)[-3 * _WATCH_S :], dtype=float).reshape(3, -1).mean(axis=1)
    first_step, second_step = last[1] - last[0], last[2] - last[1]
    grows = all(step > max(10.0, 0.2 * base) for step, base in ((first_step, last[0]), (second_step, last[1])))
    return bool(grows and second_step >= 0.5 * first_step)
