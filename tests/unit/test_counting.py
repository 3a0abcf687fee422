"""What a finite number of requests adds to an interval, by hand and against the binomial itself."""

from math import comb, hypot

import pytest

from powerband.records.counting import with_counting
from powerband.records.value import Interval

N = 28


def exact(value: float) -> Interval:
    return with_counting(value, Interval(low=value, high=value), requests=N, per_request=1.0)


def test_by_hand() -> None:
    none = exact(0.0)
    # p = 0.5 / 29, so 28 p (1 - p) = 0.4744, whose root times 1.6449 is 1.1330, and half a request.
    assert [none.low, none.high] == pytest.approx([0.0, 1.633], abs=1e-3)
    half = exact(14.0)  # sqrt(28 / 4) x 1.6449 = 4.352
    assert [half.low, half.high] == pytest.approx([9.148, 18.852], abs=1e-3)
    whole = exact(28.0)
    assert [whole.low, whole.high] == pytest.approx([26.367, 28.5], abs=1e-3)  # more than all cannot be good


def test_a_share_is_never_more_than_all() -> None:
    """All of 60 are expected to be good: as a share that is 1, and half a request more is none."""
    found = with_counting(1.0, Interval(low=0.9, high=1.0), requests=60, per_request=1 / 60)
    assert found.high == 1.0
    assert found.low < 0.9


def test_it_adds_to_what_the_speed_leaves_open() -> None:
    wide = with_counting(14.0, Interval(low=11.0, high=20.0), requests=N, per_request=1.0)
    assert wide.low == pytest.approx(14 - hypot(3, 4.352) - 0.5, abs=1e-3)
    assert wide.high == pytest.approx(14 + hypot(6, 4.352) + 0.5, abs=1e-3)
    beyond = Interval(low=0.0, high=40.0)  # a faster step ends the run sooner: a higher rate than the middle's all
    assert with_counting(14.0, beyond, requests=N, per_request=1.0) == beyond


def test_many_requests_add_little_and_other_objectives_nothing() -> None:
    rate = with_counting(50.0, Interval(low=49.0, high=51.0), requests=20_000, per_request=1 / 300)
    assert rate.high - rate.low == pytest.approx(2.0, abs=0.15)
    tokens = Interval(low=1.0, high=2.0)
    assert with_counting(1.5, tokens, requests=N, per_request=0.0) is tokens


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.8, 0.97])
def test_a_binomial_count_lies_in_it_as_often_as_it_says(share: float) -> None:
    found = exact(N * share)
    inside = sum(comb(N, k) * share**k * (1 - share) ** (N - k) for k in range(N + 1) if found.low <= k <= found.high)
    assert inside >= 0.88  # 0.9 is stated; whole counts cannot hit it exactly
