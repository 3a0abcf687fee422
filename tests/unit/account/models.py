"""Models built by hand for the ledger's tests."""

from typing import Any

from powerband.probes.config_model import model_from_config
from powerband.records.config import EngineConfig, Value
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.units import GIB

LLAMA_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
LLAMA_13B = {
    **LLAMA_7B,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
}
LLAMA_8B = {
    **LLAMA_7B,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
QWEN3_32B = {
    **LLAMA_7B,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V2_LITE = {
    **LLAMA_7B,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
}


def model_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return model_from_config("m", {**config, **changes}, "config.json")


def card(gib: float, name: str = "card", capability: str = "9.0") -> DeviceSpec:
    return DeviceSpec(
        name=name,
        vendor="NVIDIA",
        kind="gpu",
        memory_bytes=round(gib * GIB),
        bandwidth_bytes_per_s=1e12,
        flops_per_s={"bf16": 1e14},
        source="made up",
        compute_capability=capability,
    )


def vllm(**knobs: Value) -> EngineConfig:
    return EngineConfig(engine="vllm", model="m", knobs=knobs)
