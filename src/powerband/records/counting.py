"""A share of few requests is a whole count that chance decides too: what that adds to an interval."""

import math

from powerband.records.value import Interval

NORMAL_90 = 1.6449  # half-width of a central 90 % interval in standard deviations


def with_counting(value: float, interval: Interval, *, requests: int, per_request: float) -> Interval:
    """``interval`` of a prediction of how many of ``requests`` are good, widened by chance; it is never narrowed.

    ``value`` and bounds are in a unit in which one good request is ``per_request`` (goodput: one over the run's
    seconds). Which of the requests near a threshold meet it differs from run to run. Each is taken to be good or not
    by itself, so the count's variance is n p (1 - p), and adds to what the interval holds already; p is the expected
    count and half a request over n + 1 (Jeffreys), since none of 28 does not mean never. Half a request is added at
    both ends: a measured count stands for all that round to it. Only a share (of which all requests are 1) ends at 1.
    """
    if requests <= 0 or per_request <= 0:
        return interval
    share = (min(max(value / per_request, 0.0), requests) + 0.5) / (requests + 1)
    chance = NORMAL_90 * math.sqrt(requests * share * (1 - share)) * per_request
    below = math.hypot(value - interval.low, chance) + per_request / 2
    above = math.hypot(interval.high - value, chance) + per_request / 2
    share_of_all = math.isclose(requests * per_request, 1.0)
    most = 1.0 if share_of_all else (requests + 0.5) * per_request
    return Interval(
        low=min(max(value - below, 0.0), interval.low),
        high=max(min(value + above, most), interval.high),
        level=interval.level,
    )
