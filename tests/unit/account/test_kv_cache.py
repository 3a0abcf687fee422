"""KV per token against hand arithmetic and published figures."""

import pytest

from powerband.account.kv_cache import kv_bytes_per_token, sequence_bytes
from powerband.records.model import LayerGroup, ModelSpec


def model_of(*layers: LayerGroup) -> ModelSpec:
    return ModelSpec(
        name="m",
        architecture="a",
        layers=layers,
        hidden=4096,
        heads=32,
        vocab=32000,
        parameters=1,
        active_parameters=1,
        weight_bytes=2,
        weight_dtype="f16",
        basis="computed",
        context_tokens=4096,
    )


SEVEN_B = model_of(LayerGroup(count=32, kind="attention", kv_heads=32, head_dim=128))


def test_seven_b_multi_head_takes_512_kib_a_token() -> None:
    assert kv_bytes_per_token(SEVEN_B, 2) == 2 * 32 * 32 * 128 * 2 == 512 * 1024


def test_sixteen_sequences_of_4096_take_32_gib() -> None:
    assert 16 * sequence_bytes(SEVEN_B, 4096, 2) == 32 * 1024**3


def test_grouped_query_heads_split_until_one_is_left() -> None:
    llama_8b = model_of(LayerGroup(count=32, kind="attention", kv_heads=8, head_dim=128))
    assert kv_bytes_per_token(llama_8b, 2) == 128 * 1024
    assert kv_bytes_per_token(llama_8b, 2, tp=8) == 16 * 1024
    assert kv_bytes_per_token(llama_8b, 2, tp=16) == 16 * 1024


def test_latents_replicate_on_every_rank() -> None:
    deepseek_v3 = model_of(LayerGroup(count=61, kind="mla", latent_dim=576))
    assert kv_bytes_per_token(deepseek_v3, 2) == 61 * 576 * 2
    assert kv_bytes_per_token(deepseek_v3, 2, tp=8) == 61 * 576 * 2


def test_a_window_caps_what_a_long_sequence_keeps() -> None:
    layer = LayerGroup(count=1, kind="sliding", kv_heads=1, head_dim=64, window_tokens=100)
    assert sequence_bytes(model_of(layer), 50, 2) == 50 * 256
    assert sequence_bytes(model_of(layer), 5000, 2) == 100 * 256


def test_recurrent_state_does_not_grow() -> None:
    layer = LayerGroup(count=2, kind="recurrent", state_values=1000, state_bytes_per_value=4)
    assert sequence_bytes(model_of(layer), 10, 2) == sequence_bytes(model_of(layer), 10_000, 2) == 8000
    assert kv_bytes_per_token(model_of(layer), 2) == pytest.approx(0)
