"""Where a promise breaks, on made-up promises whose limit is known."""

import pytest

from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.breaking import MOST, PRECISION, faster, find_breaking, longer

WORKLOAD = Workload(
    requests=tuple(RequestSpec(offset_ns=i * 1_000_000_000, input_tokens=100, output_tokens=20) for i in range(11)),
    source="test",
)


def test_the_limits_are_found_within_the_precision() -> None:
    def holds(workload: Workload) -> bool:
        rate = workload.request_rate_per_s
        assert rate is not None
        first = workload.requests[0]
        return rate <= 3.3 and first.input_tokens <= 70 and first.output_tokens <= 50

    found = find_breaking(lambda workload: holds(longer(workload, 0.5, 1.0)), WORKLOAD)  # prompts of 50 now
    assert found.rate == pytest.approx(3.3, rel=PRECISION)
    assert found.prompts == pytest.approx(1.4, rel=0.03)
    assert found.answers == pytest.approx(2.5, rel=0.03)


def test_what_never_breaks_and_what_never_holds() -> None:
    assert find_breaking(lambda _: True, WORKLOAD).rate == MOST
    assert find_breaking(lambda _: False, WORKLOAD).rate is None


def test_a_promise_broken_now_says_how_much_less_it_would_stand() -> None:
    found = find_breaking(lambda workload: (workload.request_rate_per_s or 0) <= 0.3, WORKLOAD)
    assert found.rate == pytest.approx(0.3, rel=PRECISION)


def test_a_closed_loop_has_no_rate() -> None:
    loop = Workload(requests=WORKLOAD.requests, source="test", concurrency=2)
    assert find_breaking(lambda _: True, loop).rate is None


def test_scaling_by_hand() -> None:
    assert faster(WORKLOAD, 2.0).requests[3].offset_ns == 1_500_000_000
    changed = longer(WORKLOAD, 0.001, 1.5).requests[0]
    assert (changed.input_tokens, changed.output_tokens) == (1, 30)
