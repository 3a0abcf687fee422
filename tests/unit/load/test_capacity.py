"""The search for the highest rate that keeps a promise, against servers whose capacity is known by arithmetic."""

import itertools
import random
from collections.abc import Callable

import pytest

from powerband.load.capacity import CapacitySearch, wilson


def search(
    first: float, good_share: Callable[[float], float], target: float = 0.95, requests: int = 300, seed: int = 1
) -> CapacitySearch:
    dice = random.Random(seed)
    made = CapacitySearch(first, target)
    for _ in range(40):
        rate = made.ask()
        if rate is None:
            return made
        share = good_share(rate)
        made.tell(rate, sum(dice.random() < share for _ in range(requests)), requests)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("first", [0.1, 1.0, 9.9, 10.1, 300.0])
def test_a_step_is_bracketed_within_the_tolerance(first: float) -> None:
    """Every request is good up to 10/s and none above."""
    found = search(first, lambda rate: 1.0 if rate <= 10 else 0.0).result()
    assert found.interval is not None
    assert found.rate_per_s is not None
    assert found.interval.low <= 10 <= found.interval.high
    assert found.interval.high / found.interval.low <= 1.05
    assert found.interval.low <= found.rate_per_s <= found.interval.high


def test_a_slope_is_found_near_its_crossing() -> None:
    """Attainment falls from 1 at 8/s to 0.5 at 16/s: it is 0.95 at 8.8/s."""
    rates = [
        search(4.0, lambda rate: min(1.0, max(0.0, 1 - (rate - 8) / 16)), seed=n).result().rate_per_s for n in range(20)
    ]
    known = sorted(rate for rate in rates if rate is not None)
    assert len(known) == 20
    assert known[10] == pytest.approx(8.8, rel=0.05)


def test_few_probes_are_made() -> None:
    found = search(1.0, lambda rate: 1.0 if rate <= 10 else 0.0).result()
    assert len(found.probes) <= 10  # 1, 2, 4, 8, 16, then 4 halvings of a factor of two in logarithms


@pytest.mark.parametrize(("share", "said"), [(1.0, "holds at every rate"), (0.0, "missed at every rate")])
def test_a_promise_that_always_or_never_holds_has_no_highest_rate(share: float, said: str) -> None:
    found = search(1.0, lambda rate: share).result()
    assert found.rate_per_s is None
    assert said in found.reason


def test_an_undecided_rate_is_tried_again_and_its_requests_add_up() -> None:
    made = CapacitySearch(1.0, 0.95)
    first = made.tell(1.0, 95, 100)
    assert (first.verdict, made.ask()) == ("undecided", 1.0)
    second = made.tell(1.0, 300, 300)
    assert (second.good, second.requests, second.verdict) == (395, 400, "holds")


@pytest.mark.parametrize(("good", "count"), [(0, 20), (1, 20), (19, 20), (20, 20), (180, 200)])
def test_wilson_bounds_solve_their_equation(good: int, count: int) -> None:
    """Each bound p obeys |good/count - p| = z sqrt(p (1 - p) / count), z = 1.645 for 90 %."""
    for bound in wilson(good, count):
        if 1e-9 < bound < 1 - 1e-9:
            assert abs(good / count - bound) == pytest.approx(1.645 * (bound * (1 - bound) / count) ** 0.5, rel=1e-6)


def test_the_target_is_met_by_the_rate_named_in_nine_of_ten_searches() -> None:
    """A noisy step, 99 % good below 10/s and 80 % above: the bracket holds 10/s in at least 90 % of 100 searches."""
    held = 0
    for seed in range(100):
        interval = search(3.0, lambda rate: 0.99 if rate <= 10 else 0.8, seed=seed).result().interval
        held += interval is not None and interval.low <= 10 <= interval.high
    assert held >= 90


def test_the_search_never_leaves_its_bracket() -> None:
    made = CapacitySearch(1.0, 0.9)
    tried = []
    for n in itertools.count():
        rate = made.ask()
        if rate is None:
            break
        tried.append(rate)
        made.tell(rate, 100 if rate < 5 else 10, 100)
        assert n < 20
    assert sorted(tried[:4]) == tried[:4]
    assert all(4 <= rate <= 8 for rate in tried[3:])
