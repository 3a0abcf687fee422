"""Model families: from the fields of a config.json to every tensor and every layer's cache."""

from collections.abc import Callable, Mapping
from typing import Any

from powerband.probes.families.decoder import TRAITS, read_decoder
from powerband.probes.families.gemma import read_gemma, read_gemma4
from powerband.probes.families.hybrid import (
    read_granite_hybrid,
    read_jamba,
    read_kimi_linear,
    read_llama4,
    read_mamba,
    read_mamba2,
    read_nemotron_h,
    read_qwen_next,
    read_step,
    read_windowed,
)
from powerband.probes.families.latent import read_deepseek_v4, read_latent
from powerband.probes.families.litgpt import read_litgpt
from powerband.probes.families.older import OLDER, read_nas, read_older
from powerband.probes.keys import Keys
from powerband.probes.tensors import Shape

READERS: dict[str, Callable[[Keys], Shape]] = {
    **dict.fromkeys(OLDER, read_older),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), read_gemma),
    **dict.fromkeys(("gemma4", "gemma4_text"), read_gemma4),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"), read_latent),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), read_deepseek_v4),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), read_qwen_next),
    **dict.fromkeys(("llama4", "llama4_text"), read_llama4),
    **dict.fromkeys(("mamba", "falcon_mamba"), read_mamba),
    **dict.fromkeys(("step3p5", "step3p7"), read_step),
    "mamba2": read_mamba2,
    "jamba": read_jamba,
    "nemotron_h": read_nemotron_h,
    "granitemoehybrid": read_granite_hybrid,
    "kimi_linear": read_kimi_linear,
    "mimo_v2_flash": read_windowed,
    "nemotron-nas": read_nas,
    "litgpt": read_litgpt,
}

_MPT = {"d_model", "n_heads", "n_layers", "expansion_ratio"}  # as its training configs write them


def read_shape(keys: Keys) -> Shape:
    """The shape of the language model described by ``keys``, by its model_type."""
    if "model_type" not in keys.fields and keys.fields.keys() >= _MPT:
        shape = read_older(Keys(keys.source, {**keys.fields, "model_type": "mpt"}))
        shape.assumed.append("no model_type in the config: MPT, by its field names")
        return shape
    return READERS.get(keys.text("model_type"), read_decoder)(keys)


def knows(fields: Mapping[str, Any]) -> bool:
    """Whether a family describes the config; one that does not is read as a Llama-like decoder."""
    inner = fields.get("text_config")
    kinds = {fields.get("model_type"), inner.get("model_type") if isinstance(inner, Mapping) else None}
    if "model_type" not in fields and fields.keys() >= _MPT:
        return True
    return any(kind in READERS or kind in TRAITS for kind in kinds)
