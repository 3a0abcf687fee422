"""Weights quantised while loading: bytes and step terms by hand."""

import pytest

from powerband.probes.config_model import model_from_config
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.simulate.roofline import compute_terms
from powerband.simulate.stored import stored_model

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000,
    "torch_dtype": "bfloat16", "max_position_embeddings": 2048,
}  # fmt: skip
# Of each layer: q, k, v, o of 1024 x 1024, gate and up of 4096 x 1024, down of 1024 x 4096.
LINEAR = 2 * (4 * 1024 * 1024 + 3 * 4096 * 1024)
ROWS = 2 * (4 * 1024 + 2 * 4096 + 1024)


def config(name: str) -> EngineConfig:
    return EngineConfig(engine="vllm", model="m", knobs={"quantization": name})


def test_linear_layers_take_a_byte_and_a_scale_for_each_row() -> None:
    model = model_from_config("m", SHAPE, "config.json")
    saved = model.weight_bytes - stored_model(model, config("fp8")).weight_bytes
    assert saved == LINEAR * 2 - (LINEAR + ROWS * 4)


@pytest.mark.parametrize("name", ["none", "awq"])
def test_other_words_leave_the_checkpoint_as_it_is(name: str) -> None:
    model = model_from_config("m", SHAPE, "config.json")
    assert stored_model(model, config(name)) is model


def test_a_decode_step_reads_half_and_a_prompt_computes_faster_where_the_card_can() -> None:
    model, card = model_from_config("m", SHAPE, "config.json"), read_device("h200")
    wide, narrow = (compute_terms(model, card, config(name)) for name in ("none", "fp8"))
    head = 1000 * 1024 * 2
    norms = (2 * 2 + 1) * 1024 * 2
    assert narrow.weight_s / wide.weight_s == pytest.approx(
        (LINEAR + ROWS * 4 + head + norms) / (LINEAR * 2 + head + norms), rel=0.01
    )
    assert narrow.token_s < 0.8 * wide.token_s
    assert narrow.context_token_s == wide.context_token_s
