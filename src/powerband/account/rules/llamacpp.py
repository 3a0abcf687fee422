"""llama.cpp: weights where n_gpu_layers puts them, a KV cache of n_ctx cells, compute buffers of one ubatch.

Rules read from llama.cpp (llama-context.cpp, llama-kv-cache.cpp): n_ctx is the total over n_parallel slots and is
padded to 256 cells; n_batch is the logical, n_ubatch the physical batch; K and V have their own types.
"""

from powerband.account.estimate import Estimate, about, exact, nothing
from powerband.account.kv_cache import layer_values, state_bytes
from powerband.account.plan import Plan, Pool, Request
from powerband.account.settings import Settings
from powerband.records.memory import EngineReport
from powerband.records.model import ModelSpec
from powerband.records.units import MIB

_PAD_CELLS = 256


def plan_llamacpp(request: Request) -> Plan:
    """One process on the host or one card; the cache is allocated in full at the start."""
    model, device, knobs = request.model, request.device, Settings(request.config)
    slots = knobs.whole("n_parallel", 1)
    asked = knobs.whole("n_ctx", 0, low=0) or model.context_tokens
    per_slot = _pad(max(asked // slots, 1))
    cells = per_slot * slots
    key_bytes = knobs.dtype_bytes("cache_type_k", "f16", 2.0)
    value_bytes = knobs.dtype_bytes("cache_type_v", "f16", 2.0)
    per_token = sum(
        group.count * (keys * key_bytes + values * value_bytes)
        for group in model.layers
        for keys, values in (layer_values(group),)
    )
    state = slots * sum(group.count * state_bytes(group) for group in model.layers)
    pool = Pool(
        bytes=exact(cells * per_token + state, f"{cells} cells x {per_token:.0f} bytes, allocated at the start"),
        tokens=cells,
        max_concurrency=float(slots),
        bytes_per_token=per_token,
        dtype_bytes=(key_bytes + value_bytes) / 2,
        slots=True,
    )
    activation = _compute_buffer(model, knobs, slots)
    weights = exact(model.weight_bytes, "the tensors of the file, mapped", model.basis)
    return Plan(
        memory_bytes=device.memory_bytes,
        ranks=1,
        weights=weights,
        activation=activation,
        non_torch=about(24 * MIB, "the process itself and its tokenizer", floor=16 * MIB, basis="assumed"),
        cuda_graphs=nothing("none on a CPU"),
        pool=pool,
        max_model_len=per_slot,
        max_num_seqs=slots,
        reported=EngineReport(
            weights_bytes=weights.bytes,
            activation_bytes=activation.bytes,
            kv_cache_bytes=pool.bytes.bytes,
            kv_tokens=cells,
        ),
    )


def _compute_buffer(model: ModelSpec, knobs: Settings, slots: int) -> Estimate:
    tokens = knobs.whole("n_ubatch", 512)
    wide = max(model.intermediate, model.experts_per_token * model.expert_intermediate)
    count = 4 * (tokens * (2 * wide + 3 * model.hidden) + slots * model.vocab)
    return about(count, f"f32 buffers for {tokens} tokens of one ubatch and the logits", share=0.3)


def _pad(cells: int) -> int:
    return -(-cells // _PAD_CELLS) * _PAD_CELLS
