"""Prefix cache and speculation in the simulator, by hand."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.records.config import EngineConfig
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.loop import simulate
from powerband.simulate.prefixes import PrefixCache
from powerband.simulate.scheduler import Limits, Speculation
from powerband.simulate.step_time import StepTime

S = 1_000_000_000


def request(at_s: float, prompt: int, answer: int, head: int | None = None, shared: int = 0) -> RequestSpec:
    return RequestSpec(
        offset_ns=round(at_s * S), input_tokens=prompt, output_tokens=answer, prefix_id=head, prefix_tokens=shared
    )


def ttfts(config: EngineConfig, workload: Workload, step: StepTime, limits: Limits) -> list[float]:
    run = simulate(config, workload, step, limits)
    return [(trace.t_chunks_ns[0] - trace.t_sched_ns) / S for trace in run.traces]


def test_the_second_prompt_of_a_shared_head_computes_only_its_own_part(
    config: EngineConfig, step_of: Callable[..., StepTime]
) -> None:
    workload = Workload(requests=(request(0, 100, 1, 7, 64), request(200, 100, 1, 7, 64)), source="test")
    step = step_of(token_s=1.0)  # one second a token
    on, off = Limits(slots=4, batch_tokens=1000, prefix_cache=True), Limits(slots=4, batch_tokens=1000)
    assert ttfts(config, workload, step, on) == [100.0, 36.0]
    assert ttfts(config, workload, step, off) == [100.0, 100.0]
    blocks = msgspec.structs.replace(on, block_tokens=48)  # only whole blocks of 48 are found: 48 of the 64
    assert ttfts(config, workload, step, blocks) == [100.0, 52.0]


def test_equal_blocks_are_found_up_to_the_first_that_differs() -> None:
    cache = PrefixCache(block_tokens=10, granule_tokens=1, capacity_tokens=None)
    first = RequestSpec(offset_ns=0, input_tokens=35, output_tokens=1, block_ids=(1, 2, 3))
    other = RequestSpec(offset_ns=0, input_tokens=45, output_tokens=1, block_ids=(1, 2, 9, 3))
    assert cache.hit(first) == 0
    cache.add(first)
    assert (cache.hit(other), cache.hit(first)) == (20, 30)


def test_the_least_recently_used_head_is_given_up_first() -> None:
    cache = PrefixCache(block_tokens=0, granule_tokens=1, capacity_tokens=100)
    one, two, three = (request(0, 60, 1, head, 50) for head in (1, 2, 3))
    cache.add(one)
    cache.add(two)
    assert cache.hit(one) == 50  # used now, so that two is the older one
    cache.add(three)
    assert (cache.hit(one), cache.hit(two), cache.hit(three)) == (50, 0, 50)


def test_a_whole_prompt_in_the_cache_still_computes_its_last_token() -> None:
    cache = PrefixCache(block_tokens=0, granule_tokens=1, capacity_tokens=None)
    cache.add(request(0, 50, 1, 1, 50))
    assert cache.hit(request(0, 50, 1, 1, 50)) == 49


@pytest.mark.parametrize(
    ("guesses", "acceptance", "expected"), [(1, 0.0, 1.0), (1, 1.0, 2.0), (3, 1.0, 4.0), (2, 0.5, 1.75)]
)
def test_tokens_of_a_step_by_the_geometric_sum(guesses: int, acceptance: float, expected: float) -> None:
    # 2 guesses at 1/2: one token surely, a second with 1/2, a third with 1/4
    assert Speculation(draft_tokens=guesses, acceptance=acceptance).tokens_per_step == pytest.approx(expected)


def test_speculation_divides_the_steps_fixed_cost_and_pays_for_its_guesses(
    config: EngineConfig, step_of: Callable[..., StepTime]
) -> None:
    workload = Workload(requests=(request(0, 10, 21),), source="test")
    limits = Limits(slots=1, batch_tokens=1000)
    guessing = msgspec.structs.replace(limits, speculation=Speculation(draft_tokens=3, acceptance=1.0))

    def tpot(step: StepTime, limits: Limits) -> float:
        found = simulate(config, workload, step, limits).metrics().tpot_s
        assert not isinstance(found, Missing)
        return found.p50

    fixed = step_of(weight_s=1.0)
    assert tpot(fixed, limits) == pytest.approx(1.0)
    assert tpot(fixed, guessing) == pytest.approx(0.25)  # four tokens a step
    by_token = step_of(token_s=1.0)
    assert tpot(by_token, guessing) == pytest.approx(tpot(by_token, limits))  # four tokens are checked for four given
    never = msgspec.structs.replace(limits, speculation=Speculation(draft_tokens=3, acceptance=0.0))
    assert tpot(by_token, never) == pytest.approx(4.0)  # four checked for each one given
    drafted = msgspec.structs.replace(
        limits, speculation=Speculation(draft_tokens=3, acceptance=1.0, draft_share=1 / 3)
    )
    assert tpot(fixed, drafted) == pytest.approx(0.5)  # three drafts of a third of a step each


@given(acceptance=st.floats(0, 1), guesses=st.integers(1, 8))
def test_every_token_is_given_whatever_is_guessed(acceptance: float, guesses: int) -> None:
    assert 1.0 <= Speculation(draft_tokens=guesses, acceptance=acceptance).tokens_per_step <= guesses + 1
