"""What a sequence keeps: keys and values per token, windows, latents and recurrent state, by layer.

Formulas: 2 x kv heads x head dim values per token and attention layer (one tensor of latents for MLA, DeepSeek-V2,
arXiv:2405.04434 section 2.1); under tensor parallelism each rank holds kv_heads / tp heads, at least one, so heads
replicate once tp exceeds them; MLA latents replicate on every rank.
"""

from powerband.records.model import LayerGroup, ModelSpec

# Bytes of one cached value, by the names engines use; block formats carry their scales (llama.cpp ggml-common.h).
DTYPE_BYTES: dict[str, float] = {
    "f32": 4,
    "float32": 4,
    "f16": 2,
    "float16": 2,
    "bf16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e4m3fn": 1,
    "fp8_e5m2": 1,
    "nvfp4": 9 / 16,  # 16 values of 4 bits and a scale of 8
    "int8": 1,
    "fp8_ds_mla": 656 / 576,  # 512 fp8 values, 4 f32 scales and 64 rotary values of 16 bits (vLLM, FlashMLA)
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}


def layer_values(group: LayerGroup, tp: int = 1) -> tuple[float, float]:
    """Key and value entries that one layer keeps per token on each of ``tp`` ranks; (latent, 0) for MLA."""
    if group.kind == "mla":
        return group.latent_dim / group.compression, 0.0
    heads = rank_heads(group.kv_heads, tp)
    return heads * group.head_dim / group.compression, heads * (group.v_head_dim or group.head_dim) / group.compression


def rank_heads(kv_heads: int, tp: int) -> int:
    """KV heads on one rank: an even share, at least one."""
    return -(-kv_heads // tp) if kv_heads else 0


def layer_bytes_per_token(group: LayerGroup, dtype_bytes: float, tp: int = 1) -> float:
    """Bytes per token of one layer while it grows; 0 for layers without a growing cache."""
    keys, values = layer_values(group, tp)
    return (keys + values) * dtype_bytes + group.index_bytes_per_token


def kv_bytes_per_token(model: ModelSpec, dtype_bytes: float, tp: int = 1) -> float:
    """Bytes that one more token costs one rank while every layer still grows (before sliding windows are full)."""
    return sum(group.count * layer_bytes_per_token(group, dtype_bytes, tp) for group in model.layers)


def sequence_bytes(model: ModelSpec, tokens: int, dtype_bytes: float, tp: int = 1) -> float:
    """Bytes of one sequence of ``tokens`` on one rank: windows capped, recurrent state counted once."""
    total = 0.0
    for group in model.layers:
        kept = min(tokens, group.window_tokens) if group.kind == "sliding" else tokens
        total += group.count * (kept * layer_bytes_per_token(group, dtype_bytes, tp) + state_bytes(group, tp))
    return total


def state_bytes(group: LayerGroup, tp: int = 1) -> float:
    """Recurrent state of one layer and sequence on one rank."""
    return group.state_values * group.state_bytes_per_value / tp
