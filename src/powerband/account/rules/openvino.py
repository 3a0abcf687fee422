"""OpenVINO GenAI on the host: the file's weights, a KV cache of cache_size or grown to its sequences, one step.

Read from SchedulerConfig and the CPU plug-in's defaults (8-bit cache); the process itself is assumed.
"""

from powerband.account.estimate import about, exact, nothing
from powerband.account.kv_cache import kv_bytes_per_token
from powerband.account.plan import Plan, Pool, Request
from powerband.account.settings import Settings
from powerband.records.memory import EngineReport
from powerband.records.units import GIB, MIB

_PROCESS_BYTES = 400 * MIB  # runtime, compiled kernels, tokenizer (assumed)
_CACHE_BYTES = {"auto": 1.0, "u8": 1.0, "f16": 2.0, "bf16": 2.0, "f32": 4.0}
_STEP_ROWS = 8  # values of one token alive at once, in rows of the hidden size (assumed)


def plan_openvino(request: Request) -> Plan:
    """One process; the cache counts as long as its sequences may become."""
    knobs, model = Settings(request.config), request.model
    limit = model.context_tokens or 4096
    seqs, tokens = knobs.whole("max_num_seqs", 1), knobs.whole("max_num_batched_tokens", 256)
    value = _CACHE_BYTES.get(knobs.word("KV_CACHE_PRECISION", "auto"), 1.0)
    per_token = kv_bytes_per_token(model, value)
    given = knobs.whole("cache_size", 0, low=0) * GIB
    size = given or seqs * limit * per_token
    weights = about(model.weight_bytes, f"{model.weight_dtype} weights of the file", share=0.1, basis=model.basis)
    width = _STEP_ROWS * model.hidden + 2 * model.intermediate
    activation = about(
        4 * (tokens * width + seqs * model.vocab), f"one step of {tokens} tokens", share=0.5, floor=32 * MIB
    )
    why = f"cache_size of {given / GIB:.0f} GiB" if given else f"{seqs} x {limit} tokens, grown as needed"
    pool = Pool(
        bytes=exact(size, why),
        tokens=int(size // per_token) if per_token else 0,
        max_concurrency=size / (limit * per_token) if per_token else float(seqs),
        bytes_per_token=per_token,
        dtype_bytes=value,
    )
    return Plan(
        memory_bytes=request.device.memory_bytes,
        ranks=1,
        weights=weights,
        activation=activation,
        non_torch=about(_PROCESS_BYTES, "runtime, kernels and tokenizer", share=0.5, floor=100 * MIB, basis="assumed"),
        cuda_graphs=nothing("none"),
        pool=pool,
        max_model_len=limit,
        max_num_seqs=seqs,
        reported=EngineReport(weights_bytes=weights.bytes, kv_cache_bytes=pool.bytes.bytes, kv_tokens=pool.tokens),
        engine_version=request.version,
        assumed=("OpenVINO tells nothing of its memory: weights as in the file, the rest assumed",),
    )
