"""A prediction as a curve: the objective, and the time per token, against how much longer every step takes."""

import math

import numpy as np
from numpy.typing import NDArray

from powerband.records.counting import NORMAL_90
from powerband.records.metrics import Metrics
from powerband.records.objective import objective_value
from powerband.records.rounds import Objective
from powerband.records.run import Predicted, Response
from powerband.records.value import Missing

Array = NDArray[np.float64]

_BEYOND = 0.5  # how far a curve that only has an interval is drawn out at both ends (log step)


def response_of(predicted: Predicted) -> Response:
    """The predictor's own curve, or one through the interval: beyond it the objective is as the speed."""
    if predicted.response is not None:
        return predicted.response
    low, high = predicted.interval.low, predicted.interval.high
    spread = math.log(high / low) / (2 * NORMAL_90) if 0 < low < high else 0.05
    end = NORMAL_90 * spread
    return Response(
        spread=spread,
        log_step=(-end - _BEYOND, -end, 0.0, end, end + _BEYOND),
        objective=(high * math.exp(_BEYOND), high, predicted.objective, low, low * math.exp(-_BEYOND)),
        tpot_p50_s=(None,) * 5,
    )


def value_at(response: Response, log_step: Array) -> Array:
    """The objective at each log step ratio; beyond the slow end it falls as the speed, beyond the fast end it stays."""
    values: Array = np.interp(log_step, response.log_step, response.objective)
    beyond = np.maximum(np.asarray(log_step) - response.log_step[-1], 0.0)
    return values * np.exp(-beyond)


def implied_step(response: Response, measured: Metrics, objective: Objective) -> float | None:
    """How much longer than predicted (log) the steps of a measured run were, by its time per token.

    By its objective where no time per token is known on both sides; None where that does not tell (a curve that is
    flat there).
    """
    tpot = None if isinstance(measured.tpot_s, Missing) else measured.tpot_s.p50
    known = [(time, shift) for time, shift in zip(response.tpot_p50_s, response.log_step, strict=True) if time]
    if tpot and len(known) == len(response.log_step):
        times, shifts = [math.log(time) for time, _ in known], list(response.log_step)
        # Beyond the ends the time per token is taken as proportional to the step.
        outside = min(math.log(tpot) - times[0], 0.0) + max(math.log(tpot) - times[-1], 0.0)
        return _invert(times, shifts, math.log(tpot)) + outside
    value = objective_value(measured, objective)
    falling = list(reversed(response.objective))
    if value <= 0 or not falling[0] < falling[-1] or not falling[0] <= value <= falling[-1]:
        return None
    return _invert(falling, list(reversed(response.log_step)), value)


def _invert(rising: list[float], shifts: list[float], value: float) -> float:
    """The shift at which the curve has ``value``; equal neighbours count as one point, and the ends are limits."""
    return float(np.interp(value, np.maximum.accumulate(rising), shifts))
