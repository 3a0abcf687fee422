"""The model as memory and arithmetic see it: layers by kind, parameters and bytes."""

from typing import Literal

from powerband.records.value import Basis, Record

LayerKind = Literal["attention", "sliding", "mla", "recurrent", "none"]

WeightRole = Literal["embedding", "head", "attention", "mlp", "experts", "recurrent", "norm", "vision", "other"]

# How a tensor is spread over tensor-parallel ranks: split evenly, split until one KV head is left on each rank,
# split by whole experts under expert parallelism, or a full copy on every rank.
Split = Literal["tensor", "kv_heads", "experts", "replicated"]


class LayerGroup(Record):
    """``count`` layers that keep the same state per sequence.

    ``attention``: 2 * kv_heads * head_dim values per token. ``sliding``: the same, for at most ``window_tokens``.
    ``mla``: ``latent_dim`` values per token, shared by all heads. ``recurrent``: ``state_values`` per sequence,
    whatever its length. ``none``: no state of its own (shares another layer's KV).
    """

    count: int
    kind: LayerKind
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0  # 0: as head_dim
    window_tokens: int = 0
    latent_dim: int = 0
    state_values: int = 0
    state_bytes_per_value: float = 0.0
    index_bytes_per_token: float = 0.0  # the key cache of a sparse-attention indexer, which keeps its own dtype
    compression: int = 1  # tokens that share one entry, where the layer compresses its cache


class WeightPart(Record):
    """Tensors of one role in one layer (``layer`` -1: outside the layers) that are stored and spread the same way.

    ``rows`` sums the output features: one scale each under per-channel quantisation. ``quantisable`` marks the linear
    layers that quantisers touch by default.
    """

    role: WeightRole
    layer: int
    parameters: int
    bytes: int
    dtype: str
    split: Split
    quantisable: bool = False
    rows: int = 0


class ModelSpec(Record):
    """Shape and size of a checkpoint; ``assumed`` lists in words what had to be guessed.

    ``parts`` sum to ``parameters`` and ``weight_bytes``. ``layer_order`` gives, for each layer, its index in
    ``layers``.
    """

    name: str
    architecture: str
    layers: tuple[LayerGroup, ...]
    hidden: int
    heads: int
    vocab: int
    parameters: int
    active_parameters: int  # per token; below ``parameters`` for a mixture of experts
    weight_bytes: int
    weight_dtype: str  # the widest share, such as bf16, fp8, q4_1
    basis: Basis  # of weight_bytes: measured from headers, or computed from the shape
    context_tokens: int
    compute_dtype: str = "bf16"
    intermediate: int = 0  # of the widest dense MLP
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    assumed: tuple[str, ...] = ()
    parts: tuple[WeightPart, ...] = ()
    layer_order: tuple[int, ...] = ()
    rope_dim: int = 0  # rotary dimensions per head; 0: no rotary positions
    head_dim: int = 0  # of a query head, in full-attention layers
    tied: bool = False  # the output head is the embedding
    quantisation: str = "none"  # the scheme the checkpoint was stored with, such as awq, gptq, fp8, gguf

    @property
    def n_layers(self) -> int:
        return sum(group.count for group in self.layers)

    def refuses_split(self, ranks: int) -> str:
        """Why no engine shares each layer over ``ranks`` cards; empty where one does: each takes whole heads."""
        if self.heads <= 1 or self.heads % ranks == 0:
            return ""
        return f"{self.heads} attention heads cannot be shared evenly by {ranks} cards"

    @property
    def family(self) -> str:
        """What its memory behaves like: mla, hybrid, sliding, moe or dense."""
        kinds = {group.kind for group in self.layers}
        if "mla" in kinds:
            return "mla"
        if "recurrent" in kinds:
            return "hybrid"
        if self.experts:
            return "moe"
        return "sliding" if "sliding" in kinds else "dense"
