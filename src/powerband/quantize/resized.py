"""The model as it would be in another format: the same parts, with other bytes and dtypes."""

import msgspec

from powerband.account.weights import requantised
from powerband.quantize.compatibility import read_table
from powerband.quantize.gguf_mix import BASE, gguf_bytes
from powerband.quantize.shapes import GROUPS, group_size
from powerband.records import weight_format as formats
from powerband.records.model import ModelSpec, WeightPart
from powerband.records.weight_format import WeightFormat

WIDE = ("bf16", "f16", "f32", "fp16", "fp32")
_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0}


def in_format(model: ModelSpec, name: str, group: int | None = None) -> ModelSpec:
    """``model`` stored as ``name`` of the compatibility table, in groups of ``group`` inputs where it has groups."""
    if name.startswith("gguf:"):
        return _as_gguf(model, name.removeprefix("gguf:"))
    facts = read_table().format[name]
    if not facts.storage:
        return model
    found = requantised(model, facts.storage, _kind(facts.storage, group or group_size(model) or GROUPS[-1]))
    return found if facts.activations < 16 else _weight_only(found, f"w{facts.bits:g}a16")


def _weight_only(model: ModelSpec, dtype: str) -> ModelSpec:
    """Named so that nobody takes a narrow weight for narrow arithmetic: products are made in 16 bits."""
    narrow = model.weight_dtype
    parts = tuple(msgspec.structs.replace(part, dtype=dtype) if part.dtype == narrow else part for part in model.parts)
    return msgspec.structs.replace(model, parts=parts, weight_dtype=dtype)


def _kind(storage: str, group: int) -> WeightFormat | None:
    made = {
        "gptq": formats.gptq(4, group),
        "awq": formats.awq(4, group),
        "int4": formats.packed(4, group, symmetric=True),
        "torchao-int4": formats.ao_int4(group),
    }
    return made.get(storage)


def _as_gguf(model: ModelSpec, kind: str) -> ModelSpec:
    """Sizes by llama.cpp's mixture; the dtype of the whole is the mixture's base type, which decides the arithmetic."""
    base = BASE[kind]
    parts = tuple(_resize(part, model, kind, base) for part in model.parts)
    return msgspec.structs.replace(
        model,
        parts=parts,
        weight_bytes=sum(part.bytes for part in parts),
        weight_dtype=base,
        quantisation="gguf",
        basis="computed",
    )


def _resize(part: WeightPart, model: ModelSpec, kind: str, base: str) -> WeightPart:
    alone = msgspec.structs.replace(model, parts=(part,))
    return msgspec.structs.replace(part, bytes=gguf_bytes(alone, kind), dtype=base)


def stored_format(model: ModelSpec) -> str:
    """The table's name for what the checkpoint is stored in; ``none`` for 16 and 32-bit weights, empty if not known."""
    stored, dtype = model.quantisation, model.weight_dtype
    if stored == "none" or (stored == "gguf" and dtype in WIDE):
        return "none" if stored == "none" else f"gguf:{'bf16' if dtype == 'bf16' else 'f16'}"
    if stored == "gguf":
        return _GGUF_NAMES.get(dtype, f"gguf:{dtype}")
    if stored in ("bitsandbytes",):
        return "bnb-nf4" if "nf4" in dtype else "bnb-int8"
    if stored == "torchao":
        return "torchao-int4" if "int4" in dtype else "torchao-int8"
    if stored == "mlx":
        return "mlx-8bit" if "8" in dtype else "mlx-4bit"
    if stored in ("gptq", "auto-round"):
        return "gptq-int8" if dtype.endswith("8") else "gptq"
    if stored == "awq":
        return "awq"
    by_dtype = {"fp8": "fp8", "int8": "int8-w8a8", "int4": "int4", "nvfp4": "nvfp4", "mxfp4": "mxfp4"}
    return by_dtype.get(dtype, "")


_GGUF_NAMES = {
    "q2_k": "gguf:q2_k", "q3_k": "gguf:q3_k_m", "q4_k": "gguf:q4_k_m", "q5_k": "gguf:q5_k_m", "q6_k": "gguf:q6_k",
}  # fmt: skip


def at_sixteen_bits(model: ModelSpec) -> ModelSpec:
    """The model before quantisation, where it is stored quantised: what a plan compares with."""
    if model.weight_dtype in WIDE:
        return model
    parts = tuple(
        msgspec.structs.replace(part, bytes=round(part.parameters * _BYTES.get(part.dtype, 2.0)), dtype="bf16")
        for part in model.parts
    )
    return msgspec.structs.replace(
        model, parts=parts, weight_bytes=sum(part.bytes for part in parts), weight_dtype="bf16", quantisation="none"
    )
