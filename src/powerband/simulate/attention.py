"""What attention reads and computes: cache bytes of a decode step, FLOPs of a prompt, activations' passes."""

from powerband.records.model import ModelSpec
from powerband.records.value import Record

# Sparse attention (a latent cache with an indexer, as in DeepSeek-V3.2 and GLM-5): a query attends to index_topk tokens
# at most, in absorbed form, and FlashMLA's sparse kernel on Hopper pads each rank's heads to 64. The indexer scores the
# whole context with 64 heads (32 in GLM-5) in 8 bit, and every rank does all of it.
SPARSE_TOKENS, SPARSE_HEADS, ROPE_VALUES, INDEX_HEADS, INDEX_SCALE_BYTES = 2048, 64, 64, 64, 4
# Passes over ``hidden`` 16-bit values a layer and token: two norms with their residual 8, results of projections and
# collectives 8; and for each expert its result written and read.
PASSES, EXPERT_PASSES = 16, 2


class CacheReads(Record):
    """Bytes of each rank: per context token where all of it is read, and where at most ``window_tokens`` a sequence
    are; and the recurrent state of a sequence, read and written."""

    full: float
    capped: float
    window_tokens: int
    state: float


class PairFlops(Record):
    """FLOPs of each rank per (query, key) pair of a prompt: where a query attends to all before it, and where to at
    most ``cap_tokens``. QK^T and AV, two FLOPs a multiply-add, all heads and layers."""

    full: float
    capped: float
    cap_tokens: int


def compute_cache_reads(model: ModelSpec, value_bytes: float, tp: int) -> CacheReads:
    """KV heads are split until one is left on each rank; a latent cache is a full copy on each."""
    full = capped = state = 0.0
    window = 0
    for group in model.layers:
        heads = max(group.kv_heads / tp, 1.0) if group.kv_heads else 0.0
        values = heads * (group.head_dim + (group.v_head_dim or group.head_dim)) / group.compression
        if group.kind == "attention":
            full += group.count * values * value_bytes
        elif group.kind == "mla":
            latent = group.count * group.latent_dim / group.compression * value_bytes
            full += group.count * group.index_bytes_per_token
            if group.index_bytes_per_token:
                capped, window = capped + latent, max(window, SPARSE_TOKENS)
            else:
                full += latent
        elif group.kind == "sliding":
            capped += group.count * values * value_bytes
            window = max(window, group.window_tokens)
        elif group.kind == "recurrent":
            state += 2 * group.count * group.state_values * (group.state_bytes_per_value or 4.0)
    return CacheReads(full=full, capped=capped, window_tokens=window, state=state)


def compute_pair_flops(model: ModelSpec, tp: int) -> PairFlops:
    full = capped = 0.0
    cap = 0
    for group in model.layers:
        if group.kind in ("attention", "sliding"):
            flops = group.count * 2 * model.heads / tp * (group.head_dim + (group.v_head_dim or group.head_dim))
            if group.kind == "attention":
                full += flops
            else:
                capped, cap = capped + flops, max(cap, group.window_tokens)
        elif group.kind == "mla" and group.index_bytes_per_token:
            heads = max(model.heads / tp, SPARSE_HEADS)
            capped, cap = capped + group.count * 2 * heads * (2 * group.latent_dim - ROPE_VALUES), SPARSE_TOKENS
            # In 8 bit, which is twice as fast as the type that the seconds are computed for.
            full += group.count * 2 * INDEX_HEADS * (group.index_bytes_per_token - INDEX_SCALE_BYTES) / 2
        elif group.kind == "mla":
            full += group.count * 4 * model.heads / tp * (group.head_dim or group.latent_dim)
    return PairFlops(full=full, capped=capped, cap_tokens=cap)


def activation_bytes(model: ModelSpec) -> float:
    """Bytes that a token's activations move on every rank, whatever the tensor parallelism: norms, residuals, results
    of row-parallel products. What is sharded (heads, the inside of the MLP) is smaller and left out."""
    passes = PASSES + (EXPERT_PASSES * model.experts_per_token if model.experts else 0)
    return model.n_layers * passes * model.hidden * 2.0
