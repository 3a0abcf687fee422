"""A ModelSpec whose weights come from safetensors headers: the config gives the shape, the headers the bytes."""

import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from powerband.probes.safetensors import StoredTensor
from powerband.records.model import ModelSpec, Split, WeightPart, WeightRole
from powerband.records.units import format_bytes

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.(.*)")
# Where a name contains the word, the tensor has the role; the first that fits counts.
_ROLES: tuple[tuple[tuple[str, ...], WeightRole], ...] = (
    (("experts",), "experts"),
    (("norm", "ln_"), "norm"),
    (("linear_attn", "mamba", "ssm", "mixer.in_proj", "mixer.out_proj", "conv1d", "A_log"), "recurrent"),
    (("attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj", "qkv"), "attention"),
    (("mlp", "feed_forward", "ffn", "gate_proj", "up_proj", "down_proj"), "mlp"),
)
_SPLIT: dict[WeightRole, Split] = {
    "embedding": "tensor", "head": "tensor", "attention": "tensor", "mlp": "tensor", "experts": "experts",
    "recurrent": "tensor", "norm": "replicated", "vision": "replicated", "other": "replicated",
}  # fmt: skip


def with_stored_weights(model: ModelSpec, tensors: Sequence[StoredTensor]) -> ModelSpec:
    """``model`` with every part's bytes as stored; draft layers that engines leave out are noted and not counted."""
    stored: dict[tuple[int, WeightRole], int] = defaultdict(int)
    drafts = 0
    for tensor in tensors:
        layer, role = place(tensor.name)
        if layer >= model.n_layers or "mtp" in tensor.name.split("."):
            drafts += tensor.bytes
        elif not (model.tied and role == "head"):
            stored[layer, role] += tensor.bytes
    parts = tuple(_spread(model.parts, stored))
    total = sum(part.bytes for part in parts)
    notes = model.assumed
    if drafts:
        notes = (*notes, f"{format_bytes(drafts)} of draft layers (MTP) in the checkpoint are not loaded by default")
    return msgspec.structs.replace(model, parts=parts, weight_bytes=total, basis="measured", assumed=notes)


def _spread(parts: Sequence[WeightPart], stored: dict[tuple[int, WeightRole], int]) -> list[WeightPart]:
    """Bytes as stored for each layer and role, shared among its parts in proportion to their computed bytes."""
    # Small tensors (norms, routers, biases) go by other names in other releases: per layer they count as one.
    computed: dict[tuple[int, str], int] = defaultdict(int)
    for part in parts:
        computed[part.layer, _lump(part.role)] += part.bytes
    found: dict[tuple[int, str], int] = defaultdict(int)
    for (layer, role), count in stored.items():
        found[layer, _lump(role)] += count
    result = []
    for part in parts:
        key = part.layer, _lump(part.role)
        share = part.bytes / computed[key] if computed[key] else 0.0
        result.append(msgspec.structs.replace(part, bytes=round(found.get(key, 0) * share)))
    known = set(computed)
    for (layer, lump), count in found.items():
        if (layer, lump) not in known:
            result.append(
                WeightPart(role="other", layer=layer, parameters=0, bytes=count, dtype="", split="replicated")
            )
    slack = sum(found.values()) - sum(part.bytes for part in result)
    if result and slack:  # what rounding left over
        result[0] = msgspec.structs.replace(result[0], bytes=result[0].bytes + slack)
    return result


def _lump(role: WeightRole) -> str:
    return "small" if role in ("norm", "other") else role


def place(name: str) -> tuple[int, WeightRole]:
    """The layer (-1: none) and the role that a tensor's name gives it."""
    if any(word in name for word in ("visual", "vision", "multi_modal_projector", "mm_projector", "embed_vision")):
        return -1, "vision"
    match = _LAYER.search(name)
    if match is None:
        if "lm_head" in name or name.startswith(("output.", "embed_out")):
            return -1, "head"
        embeds = ("embed", "wte", "wpe", "tok_embeddings")
        return -1, "embedding" if any(word in name for word in embeds) and "norm" not in name else "norm"
    inner = match[2]
    for words, role in _ROLES:
        if any(word in inner for word in words):
            if role == "experts" and "shared_expert" in inner:
                return int(match[1]), "other" if "gate." in inner.replace(
                    "_gate.", "gate."
                ) and "proj" not in inner else "mlp"
            if inner.endswith(("gate.weight", "router.weight", "router.bias")) and role == "mlp":
                return int(match[1]), "other"
            return int(match[1]), role
    return int(match[1]), "other"


def model_from_headers(name: str, tensors: Sequence[StoredTensor], base: ModelSpec) -> ModelSpec:
    """For an architecture no family describes: every byte from the headers, the cache layout from ``base``."""
    sums: dict[tuple[int, WeightRole, str], list[int]] = defaultdict(lambda: [0, 0])
    for tensor in tensors:
        layer, role = place(tensor.name)
        entry = sums[layer, role, tensor.dtype.lower()]
        entry[0] += tensor.values
        entry[1] += tensor.bytes
    parts = tuple(
        WeightPart(
            role=role,
            layer=layer,
            parameters=values,
            bytes=count,
            dtype=dtype,
            split=_SPLIT[role],
            quantisable=role in ("attention", "mlp", "experts", "recurrent"),
        )
        for (layer, role, dtype), (values, count) in sums.items()
    )
    return msgspec.structs.replace(
        base,
        name=name,
        parts=parts,
        parameters=sum(part.parameters for part in parts),
        active_parameters=sum(part.parameters for part in parts),
        weight_bytes=sum(part.bytes for part in parts),
        basis="measured",
    )
