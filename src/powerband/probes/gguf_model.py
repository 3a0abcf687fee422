"""From a GGUF header to a ModelSpec: the weights are exact, the cache layout comes from metadata and tensor names."""

import re
from pathlib import Path

from powerband.probes.gguf import GgufHeader, GgufTensor, LongArray, read_gguf
from powerband.probes.spec import group_layers, main_dtype, merge_parts
from powerband.records.errors import RequestError
from powerband.records.model import LayerGroup, ModelSpec, Split, WeightPart, WeightRole

# Layers between two full-attention ones where the file names a window but no pattern; from llama.cpp's load_hparams.
_WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "exaone4": 4}
_FLOAT_BYTES = 4.0  # llama.cpp keeps recurrent state in f32


def read_gguf_model(path: Path) -> ModelSpec:
    """Weights as stored, layers by kind. Raises RequestError where the header lacks a length the arithmetic needs."""
    header = read_gguf(path)
    keys = _Keys(path, header)
    layers = [_layer(keys, index) for index in range(keys.count("block_count") - keys.optional("nextn_predict_layers"))]
    groups, order = group_layers(layers)
    parts = merge_parts(_part(tensor) for tensor in header.tensors)
    total = sum(part.parameters for part in parts)
    used, experts = keys.optional("expert_used_count"), keys.optional("expert_count")
    routed = sum(part.parameters for part in parts if part.role == "experts")
    heads = keys.per_layer("attention.head_count", 0) or max(
        (keys.per_layer("attention.head_count", index) for index in range(len(layers))), default=0
    )
    return ModelSpec(
        name=str(header.metadata.get("general.name") or path.stem),
        architecture=keys.arch,
        layers=groups,
        layer_order=order,
        hidden=keys.count("embedding_length"),
        heads=heads,
        head_dim=keys.key_length(heads),
        vocab=keys.vocab(),
        parameters=total,
        active_parameters=total - round(routed * (1 - used / experts)) if experts and used else total,
        weight_bytes=sum(part.bytes for part in parts),
        weight_dtype=main_dtype(parts),
        basis="measured",
        context_tokens=keys.optional("context_length"),
        compute_dtype="f32",
        intermediate=max((keys.per_layer("feed_forward_length", i) for i in range(len(layers))), default=0),
        experts=experts,
        experts_per_token=used,
        expert_intermediate=keys.optional("expert_feed_forward_length"),
        parts=parts,
        rope_dim=keys.optional("rope.dimension_count"),
        tied="output.weight" not in keys.names,
        quantisation="gguf",
        assumed=tuple(keys.assumed),
    )


class _Keys:
    """The metadata under its architecture's prefix."""

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self.path = path
        self.metadata = header.metadata
        self.names = {tensor.name for tensor in header.tensors}
        self.shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        self.assumed: list[str] = []
        arch = header.metadata.get("general.architecture")
        if not isinstance(arch, str):
            raise RequestError(f"{path} names no general.architecture", hint="it may be a LoRA adapter or a projector")
        self.arch = arch

    def optional(self, key: str) -> int:
        value = self.metadata.get(f"{self.arch}.{key}")
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
            raise RequestError(f"{self.path}: {self.arch}.{key} is {value!r}", hint="a whole number is expected")
        return value

    def count(self, key: str) -> int:
        value = self.optional(key)
        if value <= 0:
            raise RequestError(
                f"{self.path} has no {self.arch}.{key}", hint="this is not a language model, or its header is damaged"
            )
        return value

    def per_layer(self, key: str, layer: int) -> int:
        """A value given once for all layers, or as a list with one for each."""
        value = self.metadata.get(f"{self.arch}.{key}")
        if isinstance(value, list):
            item = value[layer] if layer < len(value) else 0
            return int(item) if isinstance(item, int) else 0
        return self.optional(key)

    def vocab(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, LongArray):
            return tokens.length
        if isinstance(tokens, list):
            return len(tokens)
        return self.optional("vocab_size") or self.shapes.get("token_embd.weight", (0, 0))[-1]

    def key_length(self, heads: int) -> int:
        return self.optional("attention.key_length") or (self.optional("embedding_length") // heads if heads else 0)


def _layer(keys: _Keys, index: int) -> LayerGroup:
    has = {name.split(".")[2] for name in keys.names if name.startswith(f"blk.{index}.")}
    if any(name.startswith("ssm_") for name in has) and "attn_k" not in has and "attn_output" not in has:
        return _recurrent(keys)
    if not any(name.startswith("attn_") and not name.endswith("norm") for name in has):
        return LayerGroup(count=1, kind="none")
    if keys.optional("attention.kv_lora_rank") and "attn_kv_a_mqa" in has:
        return _mla(keys, index, absorbed="attn_k_b" in has)
    shared = keys.optional("attention.shared_kv_layers")
    if shared and index >= keys.count("block_count") - shared:
        return LayerGroup(count=1, kind="none")
    heads = keys.per_layer("attention.head_count", index)
    kv_heads = keys.per_layer("attention.head_count_kv", index) or heads
    window = keys.optional("attention.sliding_window")
    if window and _slides(keys, index):
        key = keys.optional("attention.key_length_swa") or keys.key_length(heads)
        value = keys.optional("attention.value_length_swa") or keys.optional("attention.value_length")
    else:
        key, value, window = keys.key_length(heads), keys.optional("attention.value_length"), 0
    if not key or not kv_heads:
        raise RequestError(f"{keys.path} names no attention head count or length", hint="its header is damaged")
    return LayerGroup(
        count=1,
        kind="sliding" if window else "attention",
        kv_heads=kv_heads,
        head_dim=key,
        v_head_dim=value if value != key else 0,
        window_tokens=window,
    )


def _slides(keys: _Keys, index: int) -> bool:
    pattern = keys.metadata.get(f"{keys.arch}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return bool(pattern[index]) if index < len(pattern) else False
    period = pattern if isinstance(pattern, int) and pattern > 0 else _WINDOW_PERIOD.get(keys.arch)
    if period is None:
        if index == 0:
            keys.assumed.append(
                f"sliding window of {keys.arch}: no pattern known, all layers counted as full attention"
            )
        return False
    return (index + 1) % period != 0


def _mla(keys: _Keys, index: int, *, absorbed: bool) -> LayerGroup:
    heads = keys.per_layer("attention.head_count", index)
    if absorbed:
        rope = keys.optional("rope.dimension_count")
        return LayerGroup(count=1, kind="mla", latent_dim=keys.optional("attention.kv_lora_rank") + rope)
    # Files from before llama.cpp absorbed MLA: every head's key and value is stored.
    return LayerGroup(
        count=1,
        kind="attention",
        kv_heads=heads,
        head_dim=keys.optional("attention.key_length"),
        v_head_dim=keys.optional("attention.value_length"),
    )


def _recurrent(keys: _Keys) -> LayerGroup:
    inner, state = keys.optional("ssm.inner_size"), keys.optional("ssm.state_size")
    kernel, groups = keys.optional("ssm.conv_kernel"), keys.optional("ssm.group_count")
    convolved = inner + 2 * groups * state
    values = max(kernel - 1, 0) * convolved + state * inner
    return LayerGroup(count=1, kind="recurrent", state_values=values, state_bytes_per_value=_FLOAT_BYTES)


_LAYER = re.compile(r"blk\.(\d+)\.(\w+)")


def _part(tensor: GgufTensor) -> WeightPart:
    match = _LAYER.match(tensor.name)
    role, split = _role(match[2] if match else tensor.name, inside=match is not None)
    return WeightPart(
        role=role,
        layer=int(match[1]) if match else -1,
        parameters=tensor.values,
        bytes=tensor.bytes,
        dtype=tensor.kind.name,
        split=split,
        quantisable=len(tensor.shape) > 1,
        rows=tensor.values // tensor.shape[0] if tensor.shape and tensor.shape[0] else 0,
    )


def _role(name: str, *, inside: bool) -> tuple[WeightRole, Split]:
    if not inside:
        if name.startswith("output.") or name == "output":
            return "head", "tensor"
        embeds = name.startswith(("token_embd.", "per_layer_token_embd", "position_embd"))
        return ("embedding", "tensor") if embeds else ("norm" if "norm" in name else "other", "replicated")
    if "norm" in name:
        return "norm", "replicated"
    if "_exps" in name:
        return "experts", "experts"
    if name.startswith("attn_"):
        return "attention", "kv_heads" if name in ("attn_k", "attn_v") else "tensor"
    if name.startswith("ssm_"):
        return "recurrent", "tensor"
    return ("mlp", "tensor") if name.startswith("ffn_") and "gate_inp" not in name else ("other", "replicated")
