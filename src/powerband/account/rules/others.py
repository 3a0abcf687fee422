"""SGLang, TGI, TensorRT-LLM and Transformers: how each sizes its cache.

SGLang (kv_cache_configurator.py): free memory after loading, less (1 - mem_fraction_static) of what was free before.
TGI (flash_causal_lm.py, warmup): after one prefill of max_batch_prefill_tokens, a share of the free memory, and the
blocks that prefill already had. TensorRT-LLM: a share of the memory free after engine and execution context.
Transformers: nothing ahead; every layer's cache grows by copying (DynamicCache).
"""

from typing import Any

import msgspec

from powerband.account.constants import engine_constants, vllm_release
from powerband.account.estimate import Estimate, about, exact, nothing
from powerband.account.kv_cache import kv_bytes_per_token
from powerband.account.plan import Plan, Pool, Request
from powerband.account.rules.fill import fill_pool, space_left
from powerband.account.rules.vllm_step import Step, forward_bytes
from powerband.account.settings import Settings
from powerband.account.weights import rank_weight_bytes, requantised
from powerband.records.memory import EngineReport
from powerband.records.model import ModelSpec
from powerband.records.units import GIB, MIB, format_bytes, percent


def plan_sglang(request: Request) -> Plan:
    """Weights and cache share mem_fraction_static; activations and graphs live in the rest."""
    knobs, facts, device = Settings(request.config), engine_constants("sglang"), request.device
    tp = knobs.whole("tp_size", request.count)
    model = _loaded(request.model, knobs.word("quantization", "none"))
    limit = knobs.whole("context_length", 0, low=0) or model.context_tokens or 4096
    small = device.memory_bytes < 25 * 10**9
    tokens = knobs.whole("chunked_prefill_size", facts["prefill_tokens_small" if small else "prefill_tokens"])
    fraction = knobs.share("mem_fraction_static", _by_size(facts["fraction_by_tp"], tp))
    weights = _weights(request, model, tp)
    sizes = 0 if knobs.flag("disable_cuda_graph") else facts["graph_sizes"]
    graphs = _graphs(model, sizes, facts["graph_bytes_per_layer_size"], request)
    activation = _prefill(model, tokens, tp, request)
    inside = _runtime(facts, tp, request)
    free = device.memory_bytes - facts["context_bytes"]
    space = space_left(
        fraction * free,
        [weights, inside],
        1.0,
        f"{percent(fraction)} of {format_bytes(free)} free at the start, less weights",
    )
    pool = fill_pool(model, space, dtype_bytes=knobs.dtype_bytes("kv_cache_dtype", "auto", 2.0), limit=limit, tp=tp)
    seqs = knobs.whole("max_running_requests", 0, low=0) or 4096
    return _plan(request, tp, weights, activation, inside, graphs, pool, limit, seqs, facts["context_bytes"])


def plan_tgi(request: Request) -> Plan:
    knobs, facts, device = Settings(request.config), engine_constants("tgi"), request.device
    tp = knobs.whole("num_shard", request.count)
    model = _loaded(request.model, knobs.word("quantize", "none"))
    limit = knobs.whole("max_total_tokens", 0, low=0) or min(model.context_tokens or 4096, 4096)
    tokens = knobs.whole("max_batch_prefill_tokens", max(facts["prefill_tokens"], limit))
    share = facts["wiggle_share"]
    weights, inside = _weights(request, model, tp), _runtime(facts, tp, request)
    activation = _prefill(model, tokens, tp, request)
    graphs = _graphs(model, facts["graph_sizes"], facts["graph_bytes_per_layer_size"], request)
    dtype_bytes = knobs.dtype_bytes("kv_cache_dtype", "auto", 2.0)
    held = exact(tokens * kv_bytes_per_token(model, dtype_bytes, tp), "blocks of the warm-up prefill")
    budget = knobs.share("cuda_memory_fraction", 1.0) * device.memory_bytes - facts["context_bytes"]
    space = space_left(
        budget,
        [weights, inside, activation, held],
        share,
        f"{percent(share)} of the memory free after a prefill of {tokens} tokens",
    )
    added = held.bytes if space.bytes else 0
    space = msgspec.structs.replace(space, bytes=space.bytes + added, low=space.low + added, high=space.high + added)
    pool = fill_pool(model, space, dtype_bytes=dtype_bytes, limit=limit, tp=tp)
    return _plan(request, tp, weights, activation, inside, graphs, pool, limit, 4096, facts["context_bytes"])


def plan_tensorrt_llm(request: Request) -> Plan:
    knobs, facts, device = Settings(request.config), engine_constants("tensorrt-llm"), request.device
    tp, pp = knobs.whole("tp_size", request.count), knobs.whole("pp_size", 1)
    model = request.model
    limit = knobs.whole("max_seq_len", 0, low=0) or model.context_tokens or 4096
    seqs = knobs.whole("max_batch_size", facts["batch"])
    step = knobs.whole("max_num_tokens", facts["step_tokens"])
    weights, inside = _weights(request, model, tp, pp), _runtime(facts, 1, request)
    activation = _prefill(model, step, tp, request).plus(seqs * model.vocab * 4, "f32 logits of the batch")
    # trtllm-serve's spelling, and Triton's where that is used.
    share = knobs.share(
        "kv_cache_free_gpu_memory_fraction", knobs.share("kv_cache_free_gpu_mem_fraction", facts["share"])
    )
    space = space_left(
        device.memory_bytes - facts["context_bytes"],
        [weights, inside, activation],
        share,
        f"{percent(share)} of the memory free after the engine and its context",
    )
    dtype_bytes = knobs.dtype_bytes("kv_cache_dtype", "auto", 2.0)
    block = knobs.whole("tokens_per_block", facts["block_tokens"])
    pool = fill_pool(model, space, dtype_bytes=dtype_bytes, limit=limit, tp=tp, pp=pp, block_tokens=block)
    return _plan(
        request, tp * pp, weights, activation, inside, nothing("inside"), pool, limit, seqs, facts["context_bytes"]
    )


def plan_transformers(request: Request) -> Plan:
    """A batch of equal length; the cache counts as long as it is asked to grow."""
    knobs, facts, device = Settings(request.config), engine_constants("transformers"), request.device
    model = request.model
    limit = knobs.whole("max_length", 0, low=0) or min(model.context_tokens or 4096, 4096)
    batch = knobs.whole("batch_size", 1)
    value = 4 if knobs.word("dtype", "auto") == "float32" or model.compute_dtype == "f32" else 2
    weights = _weights(request, model, 1, request.count)
    per_token = kv_bytes_per_token(model, value)
    size = batch * limit * per_token
    layer = size / max(model.n_layers, 1)
    activation = _prefill(model, batch * limit, 1, request).plus(
        round(batch * model.vocab * 4 + layer), "f32 logits of the last position, one layer's cache while it is copied"
    )
    inside = _runtime(facts, 1, request)
    left = device.memory_bytes - weights.bytes - activation.bytes - inside.bytes - facts["context_bytes"]
    longest = limit * per_token
    pool = Pool(
        bytes=Estimate(
            bytes=round(size),
            low=round(size),
            high=round(size * (1 + facts["growth_share"])),
            basis="computed",
            why=f"{batch} x {limit} tokens, grown by copying; fragments may add half",
        ),
        tokens=batch * limit,
        max_concurrency=float(batch) if left >= size else max(left, 0) / longest if longest else 0.0,
        bytes_per_token=per_token,
        dtype_bytes=float(value),
        slots=True,
    )
    graphs = nothing("none")
    return _plan(
        request, request.count, weights, activation, inside, graphs, pool, limit, batch, facts["context_bytes"]
    )


def _loaded(model: ModelSpec, scheme: str) -> ModelSpec:
    return requantised(model, scheme) if scheme != "none" and model.quantisation == "none" else model


def _by_size(table: dict[str, float], tp: int) -> float:
    """The entry of the largest size not above ``tp``."""
    return table[str(max(int(size) for size in table if int(size) <= tp))]


def _weights(request: Request, model: ModelSpec, tp: int, pp: int = 1) -> Estimate:
    estimate = about(
        rank_weight_bytes(model, tp, pp),
        f"{model.weight_dtype} weights on one of {tp * pp} ranks",
        share=0.01,
        basis=model.basis,
    )
    return estimate.shifted(request.residual.weights_bytes, request.residual.source) if request.residual else estimate


def _runtime(facts: dict[str, Any], tp: int, request: Request) -> Estimate:
    count = facts["non_torch_bytes_tp" if tp > 1 else "non_torch_bytes"]
    estimate = about(count, "libraries, kernels and communication", floor=200 * MIB, basis="assumed")
    return estimate.shifted(request.residual.non_torch_bytes, request.residual.source) if request.residual else estimate


def _prefill(model: ModelSpec, tokens: int, tp: int, request: Request) -> Estimate:
    """The widest point of one prefill, by the shapes that vLLM's step has."""
    release = vllm_release("0.8", second_runner=False)
    step = Step(tokens=tokens, seqs=1, tp=tp, limit=tokens, block_tokens=16, hopper=False)
    estimate = about(
        forward_bytes(model, step, release),
        f"one prefill of {tokens} tokens",
        share=0.3,
        floor=128 * MIB,
        basis="computed",
    )
    return estimate.scaled(request.residual.activation_ratio, request.residual.source) if request.residual else estimate


def _graphs(model: ModelSpec, sizes: int, each: float, request: Request) -> Estimate:
    if not sizes:
        return nothing("none: graphs are off")
    estimate = about(
        sizes * model.n_layers * each, f"{sizes} captured sizes x {model.n_layers} layers", share=0.5, floor=0.2 * GIB
    )
    return (
        estimate.scaled(request.residual.cuda_graphs_ratio, request.residual.source) if request.residual else estimate
    )


def _plan(
    request: Request,
    ranks: int,
    weights: Estimate,
    activation: Estimate,
    inside: Estimate,
    graphs: Estimate,
    pool: Pool,
    limit: int,
    seqs: int,
    context_bytes: int,
) -> Plan:
    return Plan(
        memory_bytes=request.device.memory_bytes,
        ranks=ranks,
        weights=weights,
        activation=activation,
        non_torch=inside.plus(context_bytes, f"{format_bytes(context_bytes)} CUDA context"),
        cuda_graphs=graphs,
        pool=pool,
        max_model_len=limit,
        max_num_seqs=seqs,
        reported=EngineReport(
            weights_bytes=weights.bytes,
            activation_bytes=activation.bytes,
            non_torch_bytes=inside.bytes,
            cuda_graphs_bytes=graphs.bytes,
            kv_cache_bytes=pool.bytes.bytes,
            kv_tokens=pool.tokens,
            max_model_len=limit,
            total_bytes=request.device.memory_bytes,
        ),
        engine_version=request.version,
        assumed=(f"{request.config.engine} was not run here: rules read from its code, constants from vLLM's",),
    )
