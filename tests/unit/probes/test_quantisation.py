"""Bytes of quantised weights: each scheme against arithmetic done by hand on one matrix, and what stays unquantised."""

from typing import Any

import pytest

from powerband.probes.config_model import model_from_config
from powerband.probes.keys import Keys
from powerband.probes.quantisation import read_scheme
from powerband.probes.tensors import Tensor, head, linear, vector
from powerband.records import weight_format as formats
from powerband.records.errors import RequestError
from tests.unit.probes.test_families import CONFIG

UP = linear("model.layers.3.mlp.up_proj", "mlp", 3, 11008, 4096)  # 11008 outputs, 4096 inputs
OUT = linear("model.layers.3.self_attn.o_proj", "attention", 3, 4096, 4096)
EXPERT = Tensor("model.layers.3.mlp.experts.0.up_proj", "experts", 3, 768, 2048, False, 128, "experts", True)
VALUES = 11008 * 4096


def bytes_of(tensor: Tensor, config: dict[str, Any]) -> int | None:
    kind = read_scheme(Keys("config.json", {"quantization_config": config})).format_of(tensor)
    return kind.bytes_of(tensor.outputs, tensor.inputs, tensor.copies) if kind else None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # fp8: a byte a value; one scale and one activation scale (f32), a scale a row, or a scale a 128 x 128 block
        ({"quant_method": "fp8", "activation_scheme": "static"}, VALUES + 4 + 4),
        ({"quant_method": "fbgemm_fp8"}, VALUES + 4 * 11008),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, VALUES + 4 * 86 * 32),
        # AWQ: 4 bits; for each 128 inputs of a row a 16-bit scale and a 4-bit zero point
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, VALUES // 2 + 32 * 11008 * 5 // 2),
        # GPTQ adds the group of each input as an int32; without groups there is one scale a row
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, VALUES // 2 + 32 * 11008 * 5 // 2 + 4 * 4096),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, VALUES + 11008 * 3 + 4 * 4096),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, VALUES * 3 // 8 + 32 * 11008 * 19 // 8 + 4 * 4096),
        # bitsandbytes: nf4 with an f32 absmax for 64 values, or an 8-bit one and an f32 for 256 of those
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, VALUES // 2 + 4 * VALUES // 64 + 64),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            VALUES // 2 + VALUES // 64 + 4 * VALUES // 64 // 256 + 68,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, VALUES + 4 * 11008),
        # modelopt NVFP4: 4 bits, an fp8 scale for 16 values, two f32 for the matrix
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, VALUES // 2 + VALUES // 16 + 8),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, VALUES + 2 * 11008),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, VALUES // 2 + 32 * 11008 * 4),
        # MLX: 4 bits, a 16-bit scale and bias for 64 values
        ({"bits": 4, "group_size": 64}, VALUES // 2 + 64 * 11008 * 4),
    ],
)  # fmt: skip
def test_a_matrix_takes_its_values_and_scales(config: dict[str, Any], expected: int) -> None:
    assert bytes_of(UP, config) == expected


def compressed(weights: dict[str, Any], form: str, ignore: list[str] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}, "ignore": ignore or []}


def test_compressed_tensors_by_format() -> None:
    int8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
    assert bytes_of(UP, compressed(int8, "int-quantized")) == VALUES + 4 * 11008
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
    assert bytes_of(UP, compressed(four, "pack-quantized")) == VALUES // 2 + 32 * 11008 * 2 + 16
    mx = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    assert bytes_of(EXPERT, compressed(mx, "mxfp4-pack-quantized")) == 128 * (768 * 2048 // 2 + 768 * 2048 // 32)


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("re:.*self_attn.*", True),
        ("self_attn", True),
        ("model.layers.3.self_attn", True),
        ("model.layers.3.self_attn*", True),
        ("model.layers.*.self_attn", True),
        ("model.language_model.layers.3.self_attn.o_proj", True),
        ("model.layers.33.self_attn", False),
        ("lm_head", False),
        ("re:[", False),
    ],
)
def test_modules_left_out_by_name_glob_or_regex(pattern: str, kept: bool) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": [pattern]}
    assert (bytes_of(OUT, config) is None) is kept
    assert bytes_of(UP, config) is not None


def test_embeddings_heads_norms_and_routers_stay_wide() -> None:
    config = {"quant_method": "fp8"}
    router = Tensor("model.layers.3.mlp.gate", "other", 3, 128, 2048)
    for tensor in (head("lm_head", 32000, 4096), vector("norm", 3, 4096), router):
        assert bytes_of(tensor, config) is None
    # MLX quantises the embeddings as well, GPTQ the head where it says so
    assert bytes_of(head("lm_head", 32000, 4096), {"bits": 4, "group_size": 64}) is not None
    assert bytes_of(head("lm_head", 32000, 4096), {"quant_method": "gptq", "bits": 4, "lm_head": True}) is not None


def test_gpt_oss_quantises_its_experts_alone() -> None:
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    assert bytes_of(OUT, config) is None
    assert bytes_of(EXPERT, config) == 128 * (768 * 2048 // 2 + 768 * 2048 // 32)


def test_mixed_precision_goes_by_the_named_modules() -> None:
    config = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.language_model.layers.3.self_attn.o_proj": {"quant_algo": "FP8"},
            "model.language_model.layers.3.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        },
    }
    assert bytes_of(OUT, config) == 4096 * 4096 + 8
    assert bytes_of(UP, config) == VALUES // 2 + VALUES // 16 + 8
    assert bytes_of(linear("model.layers.4.mlp.up_proj", "mlp", 4, 64, 64), config) is None


def test_seven_b_in_awq_takes_about_four_gib() -> None:
    quantised = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    model = model_from_config("m", {**CONFIG, "quantization_config": quantised}, "config.json")
    linear_values = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    wide = 2 * 2 * 32000 * 4096 + 2 * (2 * 32 + 1) * 4096
    assert model.weight_bytes == wide + linear_values // 2 + linear_values // 128 * 5 // 2
    assert model.quantisation == "awq"


def test_an_unknown_scheme_lists_near_names() -> None:
    with pytest.raises(RequestError, match="unknown quantisation method") as caught:
        read_scheme(Keys("config.json", {"quantization_config": {"quant_method": "gptqq"}}))
    assert "gptq" in caught.value.hint


def test_groups_that_do_not_divide_round_up() -> None:
    kind = formats.awq(4, 128)
    assert kind.bytes_of(10, 130) == round(10 * 130 / 2 + 10 * 2 * 2.5)
