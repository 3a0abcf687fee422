"""The model as memory and arithmetic see it: layers by kind, parameters and bytes."""

from typing import Literal

from powerband.records.value import Basis, Record

LayerKind = Literal["attention", "sliding", "mla", "recurrent", "none"]


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


class ModelSpec(Record):
    """Shape and size of a checkpoint; ``assumed`` lists in words what had to be guessed."""

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
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    assumed: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        return sum(group.count for group in self.layers)
