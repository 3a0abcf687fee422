"""Closed-form parameter counts against published ones, cache layouts, and configs that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from powerband.account.kv_cache import kv_bytes_per_token, sequence_bytes
from powerband.probes.checkpoint import read_model
from powerband.probes.config_model import decode_config, model_from_config
from powerband.records.errors import RequestError
from powerband.records.model import ModelSpec

# Parameters as published: the sum of the checkpoint's tensors on its model page, or the count its paper states exactly.
PUBLISHED = {
    "meta-llama/Meta-Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Meta-Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Meta-Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen/Qwen2-7B": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-it": 999_885_952,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/Phi-3.5-mini-instruct": 3_821_079_552,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "deepseek-ai/DeepSeek-V3": 671_026_419_200,
    "openai/gpt-oss-120b": 116_829_156_672,
    "openai/gpt-oss-20b": 20_914_757_184,
    "ai21labs/Jamba-v0.1": 51_570_323_328,
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "bigcode/starcoder2-7b": 7_173_923_840,
    "openai-community/gpt2": 124_439_808,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "CohereForAI/aya-23-8B": 8_028_033_024,
    "internlm/internlm2-7b": 7_737_708_544,
    "baichuan-inc/Baichuan2-7B": 7_505_973_248,
    "Qwen/Qwen-1_8B": 1_836_828_672,
    "mistralai/Ministral-3-3B-2512": 3_849_090_048,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108_641_793_536,
}
# Families the field folder has no config of: sizes from their config.json, and the published count.
OTHERS: dict[str, tuple[dict[str, Any], int]] = {
    "mamba-2.8b": (
        {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "time_step_rank": 160,
         "vocab_size": 50280, "use_bias": False},
        2_768_345_600,
    ),
    "falcon-40b": (
        {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
         "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024, "bias": False},
        41_303_293_952,
    ),
    "mpt-7b": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432, "max_seq_len": 2048},
        6_649_286_656,
    ),
    "bloom": (
        {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880},
        176_247_271_424,
    ),
    "gpt-neox-20b": (
        {"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
         "num_attention_heads": 64, "vocab_size": 50432},
        20_554_567_680,
    ),
    "opt-125m": (
        {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072,
         "vocab_size": 50272, "max_position_embeddings": 2048},
        125_239_296,
    ),
    "gemma-3-27b": (
        {"model_type": "gemma3", "vision_config": {"model_type": "siglip_vision_model"},
         "text_config": {"model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
                         "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
                         "head_dim": 128, "vocab_size": 262208, "sliding_window": 1024}},
        27_432_406_640,
    ),
    "phi-4": (
        {"model_type": "phi3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
         "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352, "tie_word_embeddings": False},
        14_659_507_200,
    ),
    "glm-4-9b-0414": (
        {"model_type": "glm4", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
         "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 13696, "vocab_size": 151552},
        9_400_279_040,
    ),
    "granite-3.1-8b": (
        {"model_type": "granite", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 12800, "vocab_size": 49155, "tie_word_embeddings": True},
        8_170_848_256,
    ),
    "olmoe-1b-7b": (
        {"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
         "num_key_value_heads": 16, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8,
         "vocab_size": 50304},
        6_919_161_856,
    ),
    "smollm3-3b": (
        {"model_type": "smollm3", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
         "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256},
        3_075_098_624,
    ),
    "stablelm-2-1.6b": (
        {"model_type": "stablelm", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
         "num_key_value_heads": 32, "intermediate_size": 5632, "vocab_size": 100352, "use_qkv_bias": True},
        1_644_515_328,
    ),
}  # fmt: skip


def load_all(field_dir: Path) -> dict[str, dict[str, Any]]:
    files = sorted((field_dir / "models").glob("*.json"))
    loaded = [json.loads(path.read_bytes()) for path in files]  # one holds Infinity
    return {entry["model"]: entry for entry in loaded}


@pytest.fixture(scope="module")
def configs(field_dir: Path) -> dict[str, dict[str, Any]]:
    return load_all(field_dir)


def test_every_config_of_the_field_is_read(configs: dict[str, dict[str, Any]]) -> None:
    refused = {}
    for name, entry in configs.items():
        try:
            model = model_from_config(name, entry["config"], name)
        except RequestError as error:
            refused[name] = error.message
            continue
        assert model.weight_bytes == sum(part.bytes for part in model.parts) > 0, name
        assert model.parameters == sum(part.parameters for part in model.parts), name
        assert len(model.layer_order) == model.n_layers, name
        assert 0 < model.active_parameters <= model.parameters, name
    assert not refused


def test_an_mpt_training_config_is_read_by_its_field_names() -> None:
    """It has no model_type; its MLP is expansion_ratio x d_model: with the published vocabulary, the published count.

    A ratio of 2 takes from each of 32 layers two matrices of 2 x 4096 x 4096.
    """
    fields = {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432, "max_seq_len": 2048}
    model = model_from_config("mpt", {**fields, "expansion_ratio": 4}, "config.json")
    assert model.parameters == 6_649_286_656
    assert any("MPT" in note for note in model.assumed)
    narrow = model_from_config("mpt", {**fields, "expansion_ratio": 2}, "config.json")
    assert model.parameters - narrow.parameters == 32 * 2 * 2 * 4096 * 4096


def test_parameters_are_the_published_ones(configs: dict[str, dict[str, Any]]) -> None:
    wrong = {}
    for name, published in PUBLISHED.items():
        model = model_from_config(name, configs[name]["config"], name)
        if model.parameters != published:
            wrong[name] = (model.parameters, published)
    assert not wrong


def test_collected_counts_agree(configs: dict[str, dict[str, Any]]) -> None:
    """Counts that the collector computed by the plain dense formula, where there are any."""
    for name, entry in configs.items():
        count = entry.get("param_count", {}).get("value")
        if count:
            assert model_from_config(name, entry["config"], name).parameters == count, name


@pytest.mark.parametrize("name", OTHERS)
def test_families_without_a_field_config_meet_their_published_count(name: str) -> None:
    config, published = OTHERS[name]
    assert model_from_config(name, config, name).parameters == published


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}


def spec(**changes: Any) -> ModelSpec:
    return model_from_config("m", {**CONFIG, **changes}, "config.json")


def test_llama_2_7b_takes_half_a_mebibyte_a_token() -> None:
    model = spec()
    assert model.parameters == 6_738_415_616
    assert model.weight_bytes == 2 * 6_738_415_616
    assert kv_bytes_per_token(model, 2) == 512 * 1024
    assert 16 * sequence_bytes(model, 4096, 2) == 32 * 1024**3


def test_deepseek_v3_keeps_576_values_a_token_and_layer() -> None:
    model = spec(
        model_type="deepseek_v3", num_hidden_layers=61, kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
        n_shared_experts=1, first_k_dense_replace=3,
    )  # fmt: skip
    assert kv_bytes_per_token(model, 2) == 61 * 576 * 2  # 70 KB a token, as DeepSeek states
    assert model.family == "mla"


def test_hybrid_layers_keep_a_state_and_few_heads() -> None:
    model = spec(
        model_type="qwen3_next", num_hidden_layers=48, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
        hidden_size=2048, linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4,
    )  # fmt: skip
    assert kv_bytes_per_token(model, 2) == 12 * 2 * 2 * 256 * 2  # twelve attention layers of 48
    recurrent = next(group for group in model.layers if group.kind == "recurrent")
    # a 128 x 128 state for each of 32 heads, and three steps of 2 x 2048 + 4096 channels
    assert recurrent.state_values == 32 * 128 * 128 + 3 * 8192
    assert recurrent.count == 36


def test_gpt_oss_alternates_windows_of_128() -> None:
    kinds = ["sliding_attention", "full_attention"] * 12
    model = spec(
        model_type="gpt_oss", hidden_size=2880, num_hidden_layers=24, num_attention_heads=64, head_dim=64,
        num_key_value_heads=8, sliding_window=128, layer_types=kinds, num_local_experts=32, num_experts_per_tok=4,
    )  # fmt: skip
    windows = [model.layers[index].window_tokens for index in model.layer_order]
    assert windows == [128, 0] * 12
    long, longer = (sequence_bytes(model, tokens, 2) for tokens in (100_000, 200_000))
    assert longer - long == 100_000 * 12 * 2 * 8 * 64 * 2  # only the full layers grow


def test_layers_that_share_a_cache_keep_none() -> None:
    model = spec(
        model_type="gemma4", num_kv_shared_layers=12, num_key_value_heads=8, head_dim=256, sliding_window=1024,
        layer_types=["sliding_attention"] * 31 + ["full_attention"],
    )  # fmt: skip
    assert sum(group.count for group in model.layers if group.kind == "none") == 12


def test_an_unknown_model_type_is_read_as_llama_and_says_so() -> None:
    model = spec(model_type="brand_new")
    assert model.parameters == 6_738_415_616
    assert any("'brand_new' is not known" in note for note in model.assumed)


def test_text_and_vision_sizes_stand_apart() -> None:
    vision = {"model_type": "unheard_of_tower", "hidden_size": 64}
    outer = {"text_config": CONFIG, "vision_config": vision, "model_type": "some_vl"}
    model = model_from_config("m", outer, "config.json")
    assert model.parameters == 6_738_415_616
    assert any("not counted" in note for note in model.assumed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "no field 'hidden_size'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
        ({"hidden_size": 4095}, "4095 does not divide by 32"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"quantization_config": {"quant_method": "awqq"}}, "unknown quantisation method"),
        ({"model_type": "deepseek_v3", "q_lora_rank": 8}, "no field 'kv_lora_rank'"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MQX", "mamba_num_heads": 8, "mamba_head_dim": 64,
          "ssm_state_size": 16}, "pattern of layers"),
    ],
)  # fmt: skip
def test_bad_configs_name_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        spec(**changes)
    assert caught.value.hint


@pytest.mark.parametrize("text", [b"", b"[1, 2]", b"{", b'"model"', b"[" * 100_000])
def test_what_is_no_config_is_refused(text: bytes) -> None:
    with pytest.raises(RequestError):
        decode_config(text, "config.json")


def test_a_folder_with_nothing_in_it_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no config\.json and no \.gguf file"):
        read_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_model(str(tmp_path)).name == tmp_path.name
