"""Bytes of a model in a llama.cpp mixture: which tensor gets which type, and what falls back where rows do not divide.

Follows llama_tensor_get_type and tensor_type_fallback of llama.cpp (llama-quant.cpp, 2026): fused or unusual tensors
take the mixture's base type.
"""

from powerband.probes.gguf_types import TYPE_BY_NAME
from powerband.records.model import ModelSpec, WeightPart

BASE = {
    "f32": "f32", "f16": "f16", "bf16": "bf16", "q4_0": "q4_0", "q4_1": "q4_1", "q5_0": "q5_0", "q5_1": "q5_1",
    "q8_0": "q8_0", "q2_k": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k", "q4_k_s": "q4_k",
    "q4_k_m": "q4_k", "q5_k_s": "q5_k", "q5_k_m": "q5_k", "q6_k": "q6_k", "iq4_nl": "iq4_nl", "iq4_xs": "iq4_xs",
    "iq2_xxs": "iq2_xxs",
}  # fmt: skip
_FALLBACK = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl",
    "iq2_xxs": "iq4_nl",
}  # fmt: skip


def gguf_bytes(model: ModelSpec, kind: str) -> int:
    """Bytes of all tensors of ``model`` as ``kind`` (such as q4_k_m); norms stay f32, what is no matrix as it is."""
    return round(sum(_part_bytes(part, model, kind) for part in model.parts))


def _part_bytes(part: WeightPart, model: ModelSpec, kind: str) -> float:
    if part.role == "norm":
        return part.parameters * 4.0
    if part.role in ("embedding", "head"):
        return _size(part.parameters, _edge_type(part, model, kind), model.hidden)
    if not part.quantisable:
        return part.parameters * 4.0 if BASE[kind] not in ("f32", "f16", "bf16") else float(part.bytes)
    if part.role in ("mlp", "experts"):
        width = model.expert_intermediate if part.role == "experts" else model.intermediate
        third = part.parameters / 3
        down = _down_type(part.layer, model, kind)
        return _size(2 * third, BASE[kind], model.hidden) + _size(third, down, width or model.hidden)
    if part.role == "attention" and part.split == "kv_heads":
        half = part.parameters / 2
        return _size(half, _key_type(model, kind), model.hidden) + _size(
            half, _value_type(part.layer, model, kind), model.hidden
        )
    if part.role == "attention" and model.family != "mla":
        half = part.parameters / 2
        out = _out_type(model, kind)
        return _size(half, BASE[kind], model.hidden) + _size(half, out, model.heads * model.head_dim or model.hidden)
    return _size(part.parameters, BASE[kind], model.hidden)


def _size(parameters: float, name: str, row: int) -> float:
    kind = TYPE_BY_NAME[name]
    if row % kind.block_values:
        kind = TYPE_BY_NAME[_FALLBACK.get(name, "f16")]
        if row % kind.block_values:
            kind = TYPE_BY_NAME["f16"]
    return parameters / kind.block_values * kind.block_bytes


def _edge_type(part: WeightPart, model: ModelSpec, kind: str) -> str:
    base = BASE[kind]
    if base in ("f32", "f16", "bf16", "q8_0"):
        return base
    if part.role == "head" or model.tied:
        if model.hidden % TYPE_BY_NAME[base].block_values:
            return "q8_0"
        return "q5_k" if kind == "iq2_xxs" else "q6_k"
    return "q2_k" if kind == "iq2_xxs" else base


def _more_bits(layer: int, layers: int) -> bool:
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _gqa(model: ModelSpec) -> int:
    kv = max((group.kv_heads for group in model.layers), default=0)
    return model.heads // kv if kv else 1


def _value_type(layer: int, model: ModelSpec, kind: str) -> str:
    wide = _gqa(model) >= 4
    found = BASE[kind]
    if kind == "q2_k":
        found = "q4_k" if wide else "q3_k"
    elif kind == "iq2_xxs":
        return "q4_k" if wide or model.experts >= 4 else "q2_k"
    elif kind == "q3_k_m":
        found = "q5_k" if layer < 2 else "q4_k"
    elif kind == "q3_k_l" or (kind in ("iq4_nl", "iq4_xs") and wide):
        found = "q5_k"
    elif kind in ("q4_k_m", "q5_k_m") and _more_bits(layer, model.n_layers):
        found = "q6_k"
    elif kind == "q4_k_s" and layer < 4:
        found = "q5_k"
    if model.n_layers == 80 and found in ("q3_k", "q4_k"):  # llama.cpp calls a model of 80 layers a 70B
        found = "q5_k"
    return "q8_0" if model.experts == 8 and BASE[kind] not in ("f32", "f16", "bf16") else found


def _key_type(model: ModelSpec, kind: str) -> str:
    if model.experts == 8 and BASE[kind] not in ("f32", "f16", "bf16"):
        return "q4_k" if kind == "iq2_xxs" else "q8_0"
    return BASE[kind]


def _down_type(layer: int, model: ModelSpec, kind: str) -> str:
    layers = model.n_layers
    early = layer < layers // 8
    if kind == "q2_k":
        return "q3_k"
    if kind == "q3_k_m":
        return "q5_k" if layer < layers // 16 else "q4_k"
    if kind == "q3_k_l" or (kind == "q4_k_s" and early) or (kind in ("iq4_nl", "iq4_xs") and early):
        return "q5_k"
    if kind in ("q4_k_m", "q5_k_m") and _more_bits(layer, layers):
        return "q6_k"
    return "q2_k" if kind == "iq2_xxs" and early else BASE[kind]


def _out_type(model: ModelSpec, kind: str) -> str:
    if model.experts == 8:
        eight = ("q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq4_xs", "iq2_xxs")
        return "q5_k" if kind in eight else BASE[kind]
    return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(kind, BASE[kind])
