"""Weights on one rank: what splits, what replicates, and what another format would take."""

import msgspec

from powerband.account.kv_cache import rank_heads
from powerband.records import weight_format as formats
from powerband.records.errors import unknown_name
from powerband.records.model import ModelSpec, WeightPart
from powerband.records.weight_format import WeightFormat

# Formats that a model can be brought to, by the names people use for them.
FORMATS: dict[str, WeightFormat] = {
    "fp8": formats.FP8_CHANNEL,
    "int8": formats.INT8_CHANNEL,
    "awq": formats.awq(),
    "gptq": formats.gptq(),
    "int4": formats.packed(4, 128, symmetric=True),
    "nf4": formats.BNB_NF4,
    "bitsandbytes": formats.BNB_NF4_SINGLE,  # vLLM undoes the second quantisation of the scales while loading
    "mxfp4": formats.MXFP4,
    "nvfp4": formats.NVFP4,
    "torchao-int4": formats.ao_int4(),
    "torchao-int8": formats.AO_INT8,
    "bnb-int8": formats.BNB_INT8,
    "mlx-4bit": formats.mlx(),
    "mlx-8bit": formats.mlx(8),
    "q8_0": WeightFormat(name="q8_0", bits=8, group=32, scale_bytes=2, embeddings=True),
    "q4_0": WeightFormat(name="q4_0", bits=4, group=32, scale_bytes=2, embeddings=True),
}


def requantised(model: ModelSpec, name: str, kind: WeightFormat | None = None) -> ModelSpec:
    """``model`` with its linear layers stored as ``name``; embeddings, head, norms and routers stay as they are.

    ``kind`` replaces the usual layout of that name (another group size). Raises RequestError for a format not known.
    """
    if name not in FORMATS:
        raise unknown_name("weight format", name, FORMATS)
    kind = kind or FORMATS[name]
    parts = tuple(_part(part, kind) for part in model.parts)
    return msgspec.structs.replace(
        model,
        parts=parts,
        weight_bytes=sum(part.bytes for part in parts),
        weight_dtype=kind.name,
        quantisation=name,
        basis="computed",
    )


def _part(part: WeightPart, kind: WeightFormat) -> WeightPart:
    takes = part.quantisable or (kind.embeddings and part.role in ("embedding", "head"))
    if not takes or part.parameters <= 0:
        return part
    count = kind.bytes_of_many(part.parameters, part.rows)
    return msgspec.structs.replace(part, bytes=min(count, part.bytes), dtype=kind.name)


def rank_weight_bytes(model: ModelSpec, tp: int = 1, pp: int = 1, *, expert_parallel: bool = False) -> int:
    """Bytes of weights on the fullest rank.

    Linear layers split over ``tp``; key and value projections until one KV head is left; norms, routers and biases are
    on every rank. Layers split over ``pp`` stages; the embedding stands on the first, the head on the last.
    """
    if not model.parts:
        return -(-model.weight_bytes // (tp * pp))
    return max(_stage_bytes(model, stage, tp, pp, expert_parallel) for stage in range(pp))


def _stage_bytes(model: ModelSpec, stage: int, tp: int, pp: int, expert_parallel: bool) -> int:
    low, high = stage_layers(model.n_layers, stage, pp)
    total = 0.0
    for part in model.parts:
        if part.layer >= 0:
            held = low <= part.layer < high
        elif part.role in ("embedding", "vision"):
            held = stage == 0 or (model.tied and part.role == "embedding" and stage == pp - 1)
        else:
            held = stage == pp - 1
        if held:
            total += part_bytes(part, model, tp, expert_parallel=expert_parallel)
    return round(total)


def stage_layers(n_layers: int, stage: int, pp: int) -> tuple[int, int]:
    """First and one-past-last layer of a stage; the remainder goes one each to the stages before the last (vLLM)."""
    share, rest = divmod(n_layers, pp)
    sizes = [share] * pp
    for index in range(2, rest + 2):
        sizes[-index] += 1
    return sum(sizes[:stage]), sum(sizes[: stage + 1])


def part_bytes(part: WeightPart, model: ModelSpec, tp: int, *, expert_parallel: bool = False) -> float:
    """Bytes of ``part`` on one of ``tp`` ranks."""
    if part.split == "replicated" or tp == 1:
        return part.bytes
    if part.split == "kv_heads":
        kv_heads = max((group.kv_heads for group in model.layers), default=0)
        return part.bytes * rank_heads(kv_heads, tp) / kv_heads if kv_heads else part.bytes / tp
    if part.split == "experts" and expert_parallel and model.experts:
        return part.bytes * -(-model.experts // tp) / model.experts
    return part.bytes / tp
