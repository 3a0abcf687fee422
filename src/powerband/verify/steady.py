"""Where a run settles, and whether it does: the warm-up to cut off, and a queue that grows to the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerband.records.metrics import ttft_s
from powerband.records.run import Run
from powerband.records.units import percent
from powerband.verify.student import t_quantile
from powerband.verify.values import Floats

# Batches of five observations, as MSER-5 (White 1997): single latencies are too rough to cut by.
_BATCH = 5
# At most half of a run may be warm-up; a cut beyond says that it never settled (White 1997).
_MOST_CUT = 0.5
_BATCHES_FOR_TREND = 10
_TREND_LEVEL = 0.99
# A drift below a fifth of the mean changes no verdict that the noise between runs would allow.
_MIN_DRIFT = 0.2


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Whether what is left of a run behind its warm-up stands still, in words."""

    settled: bool
    reason: str


def find_warm_up(values: Floats) -> int | None:
    """How many leading values to cut so that the mean of the rest is known best; None where it never settles.

    MSER-5: the cut that minimises the squared standard error of the mean of what is left, over batches of five.
    """
    count = values.size // _BATCH
    if count < 4:
        return 0
    batches = values[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)
    errors = [float(batches[cut:].var()) / (count - cut) for cut in range(int(count * _MOST_CUT) + 1)]
    best = int(np.argmin(errors))
    if best == len(errors) - 1 and errors[best] < errors[0]:
        return None
    return best * _BATCH


def measure_drift(values: Floats) -> tuple[float, bool] | None:
    """Relative rise of a line over the values, and whether it is beyond chance; None where there are too few.

    The t test is on means of ten batches, since neighbouring latencies depend on each other.
    """
    if values.size < 2 * _BATCHES_FOR_TREND:
        return None
    batches = np.array([part.mean() for part in np.array_split(values, _BATCHES_FOR_TREND)])
    x = np.arange(_BATCHES_FOR_TREND, dtype=float)
    x -= x.mean()
    mean = float(batches.mean())
    slope = float((x * batches).sum() / (x * x).sum())
    rest = batches - mean - slope * x
    error = float(np.sqrt((rest @ rest) / (_BATCHES_FOR_TREND - 2) / (x * x).sum()))
    rise = slope * (_BATCHES_FOR_TREND - 1) / mean if mean > 0 else 0.0
    return rise, abs(slope) > t_quantile(_TREND_LEVEL, _BATCHES_FOR_TREND - 2) * error


def assess(run: Run) -> Steadiness:
    """Warm-up and drift of the time to first token, in the order of sending."""
    ordered = sorted(run.traces, key=lambda trace: trace.t_sched_ns)
    values = np.array([value for value in map(ttft_s, ordered) if value is not None])
    cut = find_warm_up(values)
    if cut is None:
        return Steadiness(False, "the time to first token settles in no half of the run")
    drift = measure_drift(values[cut:])
    if drift is None:
        return Steadiness(True, "too few requests to see a drift")
    rise, real = drift
    settled = not (real and abs(rise) >= _MIN_DRIFT)
    direction = "rises" if rise > 0 else "falls"
    return Steadiness(settled, f"the time to first token {direction} by {percent(abs(rise))} over the run")


def describe_drift(before: Sequence[Run], after: Sequence[Run]) -> tuple[str, ...]:
    """One line a side whose runs mostly do not settle: their latency depends on how long the run was."""
    lines = []
    for side, runs in (("before", before), ("after", after)):
        unsettled = [state for state in map(assess, runs) if not state.settled]
        if len(unsettled) * 2 > len(runs):
            lines.append(f"{side}: {unsettled[0].reason}, so its latencies depend on the length of the run")
    return tuple(lines)
