"""The rates tried until one breaks the promise, against a server that holds up to a known rate."""

import pytest

from powerband.knee import Knee


def offered_for(limit_per_s: float, first_per_s: float) -> tuple[float, int]:
    knee = Knee(first_per_s)
    while (rate := knee.ask()) is not None:
        knee.tell(rate, holds=rate <= limit_per_s)
    return knee.offered_per_s, knee.tried


def test_from_below_it_rises_to_the_first_rate_that_misses() -> None:
    # 8, 10, 12.5, 15.625 hold up to 14; 15.625 misses and is offered.
    assert offered_for(14.0, 8.0) == pytest.approx((15.625, 4))


def test_from_above_it_falls_until_one_holds() -> None:
    # 32, 25.6, 20.48, 16.384 miss, 13.1072 holds up to 14.
    assert offered_for(14.0, 32.0) == pytest.approx((16.384, 5))


def test_it_ends_where_nothing_misses() -> None:
    assert offered_for(1e9, 1.0) == pytest.approx((1.25**5, 6))
