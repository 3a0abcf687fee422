"""The folded step time equals the readable one; the number of steps until an instant equals counting them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.model import LayerGroup, ModelSpec
from powerband.simulate.clock import Clock, steps_until
from powerband.simulate.scheduler import Speculation
from powerband.simulate.step_time import predict_from_datasheet

MIXED = ModelSpec(  # full and sliding layers, experts, a recurrent part: every term is in use
    name="mixed",
    architecture="Mixed",
    layers=(
        LayerGroup(count=8, kind="attention", kv_heads=8, head_dim=128),
        LayerGroup(count=8, kind="sliding", kv_heads=8, head_dim=128, window_tokens=1024),
        LayerGroup(count=8, kind="recurrent", state_values=100_000),
    ),
    hidden=4096,
    heads=32,
    vocab=128_000,
    parameters=30_000_000_000,
    active_parameters=4_000_000_000,
    weight_bytes=60_000_000_000,
    weight_dtype="bf16",
    basis="computed",
    context_tokens=131_072,
    experts=64,
    experts_per_token=6,
)
CARD = DeviceSpec(
    name="card",
    vendor="none",
    kind="gpu",
    memory_bytes=80 << 30,
    bandwidth_bytes_per_s=3e12,
    flops_per_s={"bf16": 9e14},
    source="made up for the test",
    link_bytes_per_s=4e11,
)

HOST = msgspec.structs.replace(CARD, name="host", kind="cpu", cores=4)


@given(
    sequences=st.integers(0, 300),
    context=st.integers(0, 4000),
    prefill=st.integers(0, 8192),
    tp=st.sampled_from([1, 4]),
    factors=st.tuples(*[st.floats(0.3, 3.0)] * 8, st.floats(-0.5, 0.5), st.floats(0, 1), *[st.floats(0.3, 3.0)] * 2),
    engine=st.sampled_from([("vllm", CARD), ("llamacpp", HOST)]),
    fused=st.sampled_from(["auto", "off"]),
    eager=st.booleans(),
)
def test_clock_equals_step_time(
    sequences: int,
    context: int,
    prefill: int,
    tp: int,
    factors: tuple[float, ...],
    engine: tuple[str, DeviceSpec],
    fused: str,
    eager: bool,
) -> None:
    if not sequences + prefill:
        return
    name, device = engine
    config = EngineConfig(engine=name, model="mixed", knobs={"tensor_parallel_size": tp, "n_threads": 2})
    config = config.replace(flash_attn=fused, enforce_eager=eager)
    step = msgspec.structs.replace(predict_from_datasheet(MIXED, device, config), factors=factors)
    readable = step.seconds(sequences=sequences, context_tokens=sequences * context, prefill_tokens=prefill)
    pairs = prefill * (prefill + 1) / 2
    folded = Clock(step).mixed_s(sequences, sequences * context, prefill, pairs, 1 if prefill else 0)
    assert folded == pytest.approx(readable, rel=1e-9)


@given(
    sequences=st.integers(1, 300), context=st.integers(1, 100_000), kind=st.sampled_from(["plain", "sliding", "padded"])
)
def test_decode_steps_equal_step_time(sequences: int, context: int, kind: str) -> None:
    prior = predict_from_datasheet(MIXED, CARD, EngineConfig(engine="vllm", model="mixed"))
    changed = {"sliding": {}, "plain": {"sliding_token_s": 0.0}, "padded": {"sliding_token_s": 0.0, "pad_tokens": 256}}
    step = msgspec.structs.replace(prior, terms=msgspec.structs.replace(prior.terms, **changed[kind]))
    clock = Clock(step)
    clock.decode_s(sequences, 7.0)  # what it keeps of this is of no context
    first_s, growth_s = clock.decode_s(sequences, context)
    now_s, next_s = (
        step.seconds(sequences=sequences, context_tokens=tokens) for tokens in (context, context + sequences)
    )
    assert first_s == pytest.approx(now_s, rel=1e-9)
    assert growth_s == pytest.approx(0.0 if kind == "padded" else next_s - now_s, rel=1e-6, abs=1e-12)


def test_decode_steps_with_guesses_equal_mixed_ones() -> None:
    step = predict_from_datasheet(MIXED, CARD, EngineConfig(engine="vllm", model="mixed"))
    clock = Clock(step, Speculation(draft_tokens=3, acceptance=0.6, draft_share=0.1))
    first_s, growth_s = clock.decode_s(40, 50_000.0)
    assert first_s == pytest.approx(clock.mixed_s(40, 50_000.0, 0, 0.0, 0), rel=1e-12)
    assert first_s + growth_s == pytest.approx(clock.mixed_s(40, 50_040.0, 0, 0.0, 0), rel=1e-12)


@given(wait_s=st.floats(0, 100), first_s=st.floats(0.001, 1.0), growth_s=st.one_of(st.just(0.0), st.floats(1e-6, 1e-2)))
def test_steps_until_counts_them(wait_s: float, first_s: float, growth_s: float) -> None:
    steps, elapsed = 0, 0.0
    while elapsed < wait_s - 1e-7 or steps < 1:
        elapsed += first_s + growth_s * steps
        steps += 1
    assert abs(steps_until(wait_s, first_s, growth_s) - steps) <= (1 if abs(elapsed - wait_s) < 1e-5 else 0)
