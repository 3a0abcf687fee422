"""vLLM: weights, then one profiling step, then every byte left under gpu_memory_utilization becomes KV blocks.

Inside the budget: weights, the step's peak, memory the driver counts beside PyTorch since the context was made, and
(V1 runner from 0.21) an estimate of the graphs. Outside: the CUDA context, the V2 runner's sampler state and graphs.
"""

import math

import msgspec

from powerband.account.constants import VllmRelease, newest_vllm, parse_version, vllm_release
from powerband.account.estimate import Estimate, about, nothing
from powerband.account.kv_cache import kv_bytes_per_token
from powerband.account.plan import Plan, Pool, Request
from powerband.account.rules.vllm_blocks import Layout, lay_out_blocks
from powerband.account.rules.vllm_step import Step, predict_activation, predict_graphs
from powerband.account.settings import Settings
from powerband.account.weights import rank_weight_bytes, requantised
from powerband.records.memory import EngineReport
from powerband.records.model import ModelSpec
from powerband.records.units import GIB, MIB, format_bytes
from powerband.records.value import Record

# Architectures outside the dense ones that 0.26 runs on its V2 model runner (config/vllm.py).
_SECOND_RUNNER = frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"})
_MXFP4_HIDDEN_MULTIPLE = 256  # quantization/mxfp4.py pads the experts' hidden size on Hopper
_VOCAB_MULTIPLE = 64  # vocab_parallel_embedding.py
_IN_FLIGHT_BATCHES = 2  # asynchronous scheduling, on by default
_HOST_BLOCK, _HOST_SEQS = 128, 128  # platforms/cpu.py, engine/arg_utils.py
_HOST_PROCESS_BYTES = round(1.2 * GIB)  # the worker's resident memory before weights, assumed


class _Run(Record):
    """The knobs that bear on memory, with the release's defaults."""

    release: VllmRelease
    version: str
    tp: int
    pp: int
    limit: int
    tokens: int
    seqs: int
    block: int
    dtype_bytes: float
    value_bytes: int
    budget: int
    eager: bool
    hopper: bool
    expert_parallel: bool
    caches_prefixes: bool  # asked for; models with recurrent layers do not cache prefixes otherwise
    offloaded_bytes: int  # weights that stay with the host
    pool_bytes: int  # asked for, whatever the budget; 0: what is left
    pool_blocks: int  # asked for; 0: as many as fit


def plan_vllm(request: Request) -> Plan:
    """One rank of a tensor- and pipeline-parallel group; ``count`` devices are a tensor-parallel group by default."""
    model, device, knobs = request.model, request.device, Settings(request.config)
    asked = knobs.word("quantization", "none")
    if asked != "none" and model.quantisation == "none":
        model = requantised(model, asked)
    run = _read_run(request, model, knobs)
    residual = request.residual
    weights = _weights(model, run, residual.weights_bytes if residual else 0.0)
    step = Step(
        tokens=run.tokens,
        seqs=run.seqs,
        tp=run.tp,
        limit=run.limit,
        block_tokens=run.block,
        hopper=run.hopper,
        value_bytes=run.value_bytes,
        compiled=not run.eager,
    )
    activation = predict_activation(model, step, run.release)
    inside = _non_torch(run)
    graphs = nothing("none: enforce_eager") if run.eager else predict_graphs(model, step, run.release)
    if residual:
        activation = activation.scaled(residual.activation_ratio, residual.source)
        graphs = graphs.scaled(residual.cuda_graphs_ratio, residual.source)
        inside = inside.shifted(residual.non_torch_bytes, residual.source)
    pool = _pool(model, run, [weights, activation, inside, graphs.share(run.release.graphs_inside_share)])
    outside = run.release.context_bytes + min(run.seqs, run.tokens) * model.vocab * run.release.state_bytes_per_logit
    non_torch = inside.plus(round(outside), f"{format_bytes(outside)} outside the budget (CUDA context, sampler state)")
    return Plan(
        memory_bytes=device.memory_bytes,
        ranks=run.tp * run.pp,
        weights=weights,
        activation=activation,
        non_torch=non_torch,
        cuda_graphs=graphs,
        pool=pool,
        max_model_len=run.limit,
        max_num_seqs=run.seqs,
        reported=_report(run, device.memory_bytes, weights, activation, inside, graphs, pool),
        engine_version=run.version,
    )


def _report(
    run: _Run,
    memory_bytes: int,
    weights: Estimate,
    activation: Estimate,
    inside: Estimate,
    graphs: Estimate,
    pool: Pool,
) -> EngineReport:
    """What the engine is expected to print; the cache before it is cut into blocks, negative where nothing is left."""
    return EngineReport(
        weights_bytes=weights.bytes,
        activation_bytes=activation.bytes,
        non_torch_bytes=inside.bytes,
        cuda_graphs_bytes=graphs.bytes,
        kv_cache_bytes=pool.left_bytes,
        kv_tokens=pool.tokens,
        max_concurrency=pool.max_concurrency,
        max_model_len=run.limit,
        total_bytes=memory_bytes,
        budget_bytes=run.budget,
    )


def _read_run(request: Request, model: ModelSpec, knobs: Settings) -> _Run:
    device = request.device
    version = request.version or newest_vllm()
    pp = knobs.whole("pipeline_parallel_size", 1)
    tp = knobs.whole("tensor_parallel_size", max(request.count // pp, 1))
    release = vllm_release(version, second_runner=_second_runner(model))
    host = device.kind == "cpu"
    if host:
        release = _on_host(release)
    large = device.memory_bytes >= 70 * GIB and "a100" not in device.name
    limit = knobs.whole("max_model_len", model.context_tokens or 4096)
    if release.runner == "v0":
        default_tokens = 2048 if limit > 32768 else max(limit, release.batch_tokens)
    else:
        default_tokens = release.batch_tokens_large if large else release.batch_tokens
    seqs = knobs.whole("max_num_seqs", release.seqs_large if large else release.seqs)
    tokens = knobs.whole("max_num_batched_tokens", min(default_tokens, seqs * limit))
    value_bytes = 4 if model.compute_dtype == "f32" and knobs.word("dtype", "auto") == "float32" else 2
    return _Run(
        release=release,
        version=version,
        tp=tp,
        pp=pp,
        limit=limit,
        tokens=tokens,
        seqs=min(seqs, tokens),
        block=knobs.whole("block_size", _HOST_BLOCK if host else 16),
        dtype_bytes=knobs.dtype_bytes("kv_cache_dtype", "auto", float(value_bytes)),
        value_bytes=value_bytes,
        budget=math.ceil(knobs.share("gpu_memory_utilization", release.utilisation) * device.memory_bytes),
        eager=host or knobs.flag("enforce_eager"),
        hopper=device.compute_capability.startswith(("9.", "10.")),
        expert_parallel=knobs.flag("enable_expert_parallel"),
        caches_prefixes=knobs.flag("enable_prefix_caching"),
        offloaded_bytes=round(knobs.amount("cpu_offload_gb") * GIB),
        pool_bytes=round(knobs.amount("kv_cache_memory_bytes")),
        pool_blocks=knobs.whole("num_gpu_blocks_override", 0, low=0),
    )


def _on_host(release: VllmRelease) -> VllmRelease:
    """The CPU backend: no context, no library workspace; resident memory of the process stands in for both."""
    return msgspec.structs.replace(
        release,
        batch_tokens_large=release.batch_tokens,
        seqs=_HOST_SEQS,
        seqs_large=_HOST_SEQS,
        cublas_bytes=0,
        context_bytes=0,
        state_bytes_per_logit=0.0,
        non_torch_bytes=_HOST_PROCESS_BYTES,
        non_torch_bytes_tp=_HOST_PROCESS_BYTES,
    )


def _second_runner(model: ModelSpec) -> bool:
    hybrid = any(group.kind == "recurrent" for group in model.layers)
    return not hybrid and (model.architecture in _SECOND_RUNNER or not model.experts)


def _weights(model: ModelSpec, run: _Run, residual: float) -> Estimate:
    """As loaded: the split tensors, padded vocabulary and experts, the rotary table, dequantised latents."""
    base = rank_weight_bytes(model, run.tp, run.pp, expert_parallel=run.expert_parallel)
    extra = model.context_tokens * model.rope_dim * run.value_bytes
    padding = -model.vocab % _VOCAB_MULTIPLE
    extra += padding * model.hidden * run.value_bytes * (1 if model.tied else 2) // run.tp
    if model.quantisation == "mxfp4":
        experts = sum(part.bytes for part in model.parts if part.role == "experts")
        extra += round(experts * (-model.hidden % _MXFP4_HIDDEN_MULTIPLE) / model.hidden / (run.tp * run.pp))
    if model.quantisation != "none":
        extra += _dequantised_latents(model, run)
    why = f"{model.weight_dtype} weights as loaded on one of {run.tp * run.pp} ranks"
    if run.offloaded_bytes:
        why += f", {format_bytes(run.offloaded_bytes)} of them kept by the host"
    held = max(base + extra - run.offloaded_bytes, 0)
    return about(held, why, share=0.003, basis=model.basis).shifted(residual, "reconciled")


def _dequantised_latents(model: ModelSpec, run: _Run) -> int:
    """A 16-bit copy of the matrices that expand latents, which decoding multiplies with directly."""
    total = 0.0
    for group in model.layers:
        if group.kind == "mla" and group.compression == 1:
            rank = group.latent_dim - model.rope_dim
            width = group.head_dim - model.rope_dim + group.v_head_dim
            total += group.count * rank * model.heads * width * run.value_bytes
    return round(total / (run.tp * run.pp))


def _non_torch(run: _Run) -> Estimate:
    many = run.tp > 1
    count = run.release.non_torch_bytes_tp if many else run.release.non_torch_bytes
    why = "NCCL, custom all-reduce and kernels" if many else "kernels and library handles"
    return about(count, why, floor=(250 if many else 80) * MIB, basis="assumed")


def _pool(model: ModelSpec, run: _Run, inside: list[Estimate]) -> Pool:
    """What is left of the budget, in whole blocks."""
    left, worst, best = _space(run, inside)
    per_token = kv_bytes_per_token(model, run.dtype_bytes, run.tp) / run.pp
    blocks = lay_out_blocks(
        model,
        block_tokens=run.block,
        dtype_bytes=run.dtype_bytes,
        tp=run.tp,
        limit=run.limit,
        in_flight=_IN_FLIGHT_BATCHES * run.tokens,
        pp=run.pp,
        states=2 if run.caches_prefixes else 1,
    )
    if blocks is None:
        return Pool.empty(run.tp)
    count, low, high = (
        run.pool_blocks or max(math.floor(space / blocks.block_bytes), 0) for space in (left, worst, best)
    )
    share = "" if blocks.groups == 1 else f", shared by {blocks.groups} groups of layers"
    rest = (
        "asked for" if run.pool_bytes or run.pool_blocks else f"{format_bytes(run.budget)} budget less the lines above"
    )
    why = f"{rest}: {count} blocks of {blocks.block_tokens} tokens{share}"
    size = blocks.block_bytes
    return Pool(
        bytes=Estimate(
            bytes=round(count * size), low=round(low * size), high=round(high * size), basis="computed", why=why
        ),
        tokens=_tokens(run, blocks, count),
        max_concurrency=count / blocks.blocks_per_request,
        bytes_per_token=per_token,
        dtype_bytes=run.dtype_bytes,
        tp=run.tp,
        pp=run.pp,
        block_tokens=blocks.block_tokens,
        left_bytes=left,
    )


def _space(run: _Run, inside: list[Estimate]) -> tuple[float, float, float]:
    """Bytes for the cache: expected, at the worst of the other lines, at their best; as asked where asked."""
    if run.pool_bytes:
        return run.pool_bytes, run.pool_bytes, run.pool_bytes
    expected = run.budget - sum(part.bytes for part in inside)
    return expected, run.budget - sum(part.high for part in inside), run.budget - sum(part.low for part in inside)


def _tokens(run: _Run, blocks: Layout, count: int) -> int:
    """Tokens as the release prints them."""
    if run.release.tokens_from_concurrency and parse_version(run.version) >= (0, 20):
        return int(count / blocks.blocks_per_request * run.limit)
    return count // blocks.groups * blocks.block_tokens
