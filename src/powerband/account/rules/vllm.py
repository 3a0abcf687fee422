"""vLLM: weights, then one profiling step, then every byte left under gpu_memory_utilization becomes KV blocks."""

from powerband.account.estimate import Estimate, about, exact
from powerband.account.kv_cache import kv_bytes_per_token, sequence_bytes
from powerband.account.plan import Plan, Pool
from powerband.account.settings import Settings
from powerband.account.weights import rank_weight_bytes
from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.units import GIB, MIB, format_bytes


def plan_vllm(model: ModelSpec, device: DeviceSpec, config: EngineConfig, count: int) -> Plan:
    """One rank of a tensor- and pipeline-parallel group; ``count`` devices are a tensor-parallel group by default."""
    knobs = Settings(config)
    tp = knobs.whole("tensor_parallel_size", count)
    pp = knobs.whole("pipeline_parallel_size", 1)
    limit = knobs.whole("max_model_len", model.context_tokens or 4096)
    big = device.memory_bytes >= 70 * GIB
    batch = knobs.whole("max_num_batched_tokens", 8192 if big else 2048)
    seqs = min(knobs.whole("max_num_seqs", 1024 if big else 256), batch)
    budget = round(knobs.share("gpu_memory_utilization", 0.92) * device.memory_bytes)
    dtype_bytes = knobs.dtype_bytes("kv_cache_dtype", "auto", 2.0)
    block = knobs.whole("block_size", 16)
    weights = exact(
        rank_weight_bytes(model, tp, pp), f"{model.weight_dtype} weights on one of {tp * pp} ranks", model.basis
    )
    activation = _activation(model, batch, seqs, tp)
    non_torch = about(0.6 * GIB if tp == 1 else 1.2 * GIB, "CUDA context, workspaces", floor=0.4 * GIB, basis="assumed")
    eager = knobs.flag("enforce_eager")
    graphs = about(0 if eager else 0.6 * GIB, "captured graphs", floor=0 if eager else 0.5 * GIB, basis="assumed")
    left = max(budget - weights.bytes - activation.bytes - non_torch.bytes, 0)
    page = block * kv_bytes_per_token(model, dtype_bytes, tp) / pp
    blocks = int(left // page) if page else 0
    longest = sequence_bytes(model, limit, dtype_bytes, tp) / pp
    pool_bytes = round(blocks * page)
    pool = Pool(
        bytes=Estimate(
            bytes=pool_bytes,
            low=max(pool_bytes - activation.high + activation.bytes - non_torch.high + non_torch.bytes, 0),
            high=pool_bytes + activation.bytes - activation.low + non_torch.bytes - non_torch.low,
            basis="computed",
            why=f"{format_bytes(budget)} budget less the lines above, in {blocks} blocks of {block} tokens",
        ),
        tokens=blocks * block,
        max_concurrency=pool_bytes / longest if longest else 0.0,
        bytes_per_token=kv_bytes_per_token(model, dtype_bytes, tp) / pp,
        dtype_bytes=dtype_bytes,
        tp=tp,
        block_tokens=block,
    )
    return Plan(
        memory_bytes=device.memory_bytes,
        ranks=tp * pp,
        weights=weights,
        activation=activation,
        non_torch=non_torch,
        cuda_graphs=graphs,
        pool=pool,
        max_model_len=limit,
        max_num_seqs=seqs,
    )


def _activation(model: ModelSpec, batch: int, seqs: int, tp: int) -> Estimate:
    wide = max(model.intermediate, model.experts_per_token * model.expert_intermediate)
    forward = batch * 2 * (3 * wide // tp + 4 * model.hidden)
    logits = seqs * model.vocab * (2 + 4 + 4)
    return about(
        max(forward, logits),
        f"a step of {batch} tokens, or {seqs} rows of {model.vocab} logits",
        share=0.35,
        floor=100 * MIB,
    )
