"""Weights on one rank: what splits, what replicates, and what another format would take."""

from powerband.account.kv_cache import rank_heads
from powerband.records.model import ModelSpec, WeightPart


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
            held = stage == 0 or (model.tied and stage == pp - 1)
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
