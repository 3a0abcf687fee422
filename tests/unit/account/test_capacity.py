"""Users under a traffic: closed forms, a simulation by drawing, and the laws a count of users obeys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.account.crowd import RUN_OUT_PROBABILITY, most_users
from powerband.account.ledger import compute_ledger
from powerband.records.config import EngineConfig
from powerband.records.workload import RequestSpec, Workload
from tests.unit.account.models import LLAMA_7B, card, model_of, vllm

SEVEN_B = model_of(LLAMA_7B)


def traffic(*lengths: tuple[int, int]) -> Workload:
    requests = tuple(RequestSpec(offset_ns=0, input_tokens=a, output_tokens=b) for a, b in lengths)
    return Workload(requests=requests, source="test")


def users(work: Workload, gib: float = 40.0, **knobs: int) -> float:
    found = compute_ledger(SEVEN_B, card(gib), vllm(**knobs), traffic=work, remedies=False).capacity
    assert found.users_at_traffic is not None
    return found.users_at_traffic


def test_equal_shares_fill_the_cache_exactly() -> None:
    assert most_users(np.array([0.25]), np.array([1.0]), 100) == 4
    assert most_users(np.array([0.3]), np.array([1.0]), 100) == 3
    assert most_users(np.array([1.2]), np.array([1.0]), 100) == 0
    assert most_users(np.array([0.25]), np.array([1.0]), 2) == 2


def test_two_sizes_against_the_binomial() -> None:
    """Half the users hold 0.05, half 0.15 of the cache: the largest n with P(sum > 1) <= 1 %, by exact counting."""
    shares, weights = np.array([0.05, 0.15]), np.array([0.5, 0.5])
    best = 0
    for n in range(1, 21):
        over = sum(_binomial(n, large) for large in range(n + 1) if 0.05 * (n - large) + 0.15 * large > 1 + 1e-9)
        best = n if over <= RUN_OUT_PROBABILITY else best
    assert most_users(shares, weights, 100) == best


def _binomial(n: int, k: int) -> float:
    return float(np.prod([(n - i) / (i + 1) for i in range(k)])) / 2.0**n


def test_against_a_simulation_of_random_moments() -> None:
    chance = np.random.default_rng(7)
    shares = chance.lognormal(-4.5, 0.8, 400)
    weights = np.full(400, 1 / 400)
    found = most_users(shares, weights, 1000)
    for n, within in ((found, True), (round(found * 1.06), False)):
        sums = chance.choice(shares, size=(40_000, n)).sum(axis=1)
        share_over = float((sums > 1).mean())
        assert (share_over < 2 * RUN_OUT_PROBABILITY) is within or share_over == pytest.approx(0.01, abs=0.01)


def test_fixed_lengths_are_counted_by_hand() -> None:
    """Prompts of 1000 and one-token answers hold 63 blocks of 16 tokens; whole pools of them fit."""
    found = compute_ledger(SEVEN_B, card(40.0), vllm(), traffic=traffic((1000, 1)), remedies=False)
    blocks = found.capacity.kv_tokens // 16
    # bins of 1/2048 of the cache round a sequence up, by half a percent here
    assert found.capacity.users_at_traffic == pytest.approx(blocks // 63, rel=0.03)
    assert found.capacity.users_interval is not None
    assert found.capacity.users_interval.low <= blocks // 63 <= found.capacity.users_interval.high + 1


@settings(max_examples=25, deadline=None)
@given(prompt=st.integers(1, 3000), answer=st.integers(1, 900), more=st.integers(0, 1000))
def test_longer_requests_never_leave_more_users(prompt: int, answer: int, more: int) -> None:
    assert users(traffic((prompt + more, answer))) <= users(traffic((prompt, answer)))


@settings(max_examples=15, deadline=None)
@given(gib=st.floats(16, 100), more=st.floats(0, 60))
def test_a_larger_card_never_holds_fewer(gib: float, more: float) -> None:
    work = traffic((500, 200), (2000, 100))
    assert users(work, gib + more) >= users(work, gib)


def test_double_lengths_leave_about_half_the_users() -> None:
    found = compute_ledger(SEVEN_B, card(60.0), vllm(), traffic=traffic((800, 100)), remedies=False).capacity
    assert found.users_at_traffic is not None
    assert found.users_at_double_length == pytest.approx(found.users_at_traffic / 2, rel=0.05)


def test_the_sequence_limit_caps_the_users() -> None:
    assert users(traffic((10, 10)), max_num_seqs=7) == 7


def test_slots_hold_as_many_users_as_there_are_slots() -> None:
    config = EngineConfig(engine="llamacpp", model="m", knobs={"n_ctx": 8192, "n_parallel": 4})
    for lengths, expected in (((1500, 500), 4.0), ((2000, 500), 0.0)):
        found = compute_ledger(SEVEN_B, card(80.0), config, traffic=traffic(lengths), remedies=False)
        assert found.capacity.users_at_traffic == expected


def test_requests_beyond_the_longest_sequence_are_counted() -> None:
    """The model holds 4,096 tokens; slots divide a context."""
    work = traffic((4000, 96), (4000, 97), (9000, 1))
    for config, expected in ((vllm(), 2), (vllm(max_model_len=4000), 3), (vllm(max_model_len=9001), 0)):
        found = compute_ledger(SEVEN_B, card(80.0), config, traffic=work).capacity
        assert found.too_long == expected
        assert (found.users_at_traffic == 0) == (expected == 3)  # memory is there, but not for one of them


def test_without_traffic_no_users_are_made_up() -> None:
    found = compute_ledger(SEVEN_B, card(40.0), vllm(), remedies=False).capacity
    assert found.users_at_traffic is None
    assert found.safe_prompt_tokens == 4096


def test_a_cache_smaller_than_the_limit_caps_the_safe_prompt() -> None:
    model = model_of(LLAMA_7B, max_position_embeddings=100_000)
    found = compute_ledger(model, card(24.0), vllm(), traffic=traffic((100, 50)), remedies=False)
    assert not found.fits
    assert found.capacity.safe_prompt_tokens == pytest.approx(found.capacity.kv_tokens - 50, abs=20)
