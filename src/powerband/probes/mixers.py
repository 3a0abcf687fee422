"""Attention and recurrences: their tensors, and what one layer keeps for a sequence."""

from collections.abc import Iterator
from dataclasses import dataclass

from powerband.probes.tensors import Tensor, linear, vector
from powerband.records.model import LayerGroup


@dataclass(frozen=True)
class Heads:
    """Attention with ``heads`` queries over ``kv_heads`` keys and values; ``value_dim`` 0 means as the key."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""  # "head": one scale per head dimension; "full": over all heads at once
    norm_bias: bool = False
    gated: bool = False  # the query projection also makes an output gate
    sinks: bool = False  # one learned sink per head
    key_is_value: bool = False  # no value projection: the key serves as both
    window_tokens: int = 0
    index: "Indexer | None" = None

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        value_dim = self.value_dim or self.head_dim
        queries = self.heads * self.head_dim * (2 if self.gated else 1)
        keys, values = self.kv_heads * self.head_dim, self.kv_heads * value_dim
        yield linear(f"{prefix}.q_proj", "attention", layer, queries, hidden, bias=self.bias)
        yield linear(f"{prefix}.k_proj", "attention", layer, keys, hidden, bias=self.bias, split="kv_heads")
        if not self.key_is_value:
            yield linear(f"{prefix}.v_proj", "attention", layer, values, hidden, bias=self.bias, split="kv_heads")
        yield linear(f"{prefix}.o_proj", "attention", layer, hidden, self.heads * value_dim, bias=self.out_bias)
        if self.qk_norm:
            many = self.qk_norm == "full"
            heads, kv_heads = (self.heads, self.kv_heads) if many else (1, 1)
            yield vector(f"{prefix}.q_norm", layer, heads * self.head_dim, bias=self.norm_bias)
            yield vector(f"{prefix}.k_norm", layer, kv_heads * self.head_dim, bias=self.norm_bias)
        if self.sinks:
            yield vector(f"{prefix}.sinks", layer, self.heads, role="other")
        if self.index is not None:
            yield from self.index.tensors(prefix, layer, hidden)

    def cache(self) -> LayerGroup:
        return LayerGroup(
            count=1,
            kind="sliding" if self.window_tokens else "attention",
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.value_dim if self.value_dim != self.head_dim else 0,
            window_tokens=self.window_tokens,
            index_bytes_per_token=self.index.bytes_per_token if self.index else 0.0,
        )


@dataclass(frozen=True)
class Indexer:
    """The small attention that picks tokens for a sparse one; its queries come from ``query_rank`` features."""

    heads: int
    head_dim: int
    query_rank: int
    bytes_per_token: float
    weighs_heads: bool = True

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        rank = self.query_rank or hidden
        yield linear(f"{prefix}.indexer.wq_b", "attention", layer, self.heads * self.head_dim, rank, split="replicated")
        yield linear(f"{prefix}.indexer.wk", "attention", layer, self.head_dim, hidden, split="replicated")
        if self.weighs_heads:
            yield Tensor(f"{prefix}.indexer.weights_proj", "other", layer, self.heads, hidden)
        yield vector(f"{prefix}.indexer.k_norm", layer, self.head_dim, bias=self.weighs_heads)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values from one compressed vector."""

    heads: int
    query_rank: int  # 0: queries are projected in one step
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False
    gated: bool = False
    index: Indexer | None = None

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        queries = self.heads * (self.nope_dim + self.rope_dim)
        if self.query_rank:
            yield linear(f"{prefix}.q_a_proj", "attention", layer, self.query_rank, hidden, split="replicated")
            yield vector(f"{prefix}.q_a_layernorm", layer, self.query_rank)
            yield linear(f"{prefix}.q_b_proj", "attention", layer, queries, self.query_rank)
        else:
            yield linear(f"{prefix}.q_proj", "attention", layer, queries, hidden)
        latent = self.kv_rank + self.rope_dim
        yield linear(f"{prefix}.kv_a_proj_with_mqa", "attention", layer, latent, hidden, split="replicated")
        yield vector(f"{prefix}.kv_a_layernorm", layer, self.kv_rank)
        expanded = self.heads * (self.nope_dim + self.value_dim)
        yield linear(f"{prefix}.kv_b_proj", "attention", layer, expanded, self.kv_rank)
        yield linear(f"{prefix}.o_proj", "attention", layer, hidden, self.heads * self.value_dim, bias=self.bias)
        if self.gated:
            yield linear(f"{prefix}.g_proj", "attention", layer, self.heads * self.value_dim, hidden)
        if self.index is not None:
            yield from self.index.tensors(prefix, layer, hidden)

    def cache(self) -> LayerGroup:
        return LayerGroup(
            count=1,
            kind="mla",
            kv_heads=1,
            head_dim=self.nope_dim + self.rope_dim,
            v_head_dim=self.value_dim,
            latent_dim=self.kv_rank + self.rope_dim,
            index_bytes_per_token=self.index.bytes_per_token if self.index else 0.0,
        )


def _state(conv_values: int, state_values: int, state_bytes: float, conv_bytes: float = 2.0) -> LayerGroup:
    """One recurrent layer: the convolution's tail in the model's dtype, the state in its own."""
    total = conv_values + state_values
    mean = (conv_values * conv_bytes + state_values * state_bytes) / total
    return LayerGroup(count=1, kind="recurrent", state_values=total, state_bytes_per_value=mean)


@dataclass(frozen=True)
class Mamba1:
    """Selective state space (Mamba, arXiv:2312.00752); ``norms`` adds Jamba's norms on dt, B and C."""

    inner: int
    state: int
    kernel: int
    dt_rank: int
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False
    state_bytes: float = 2.0

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        yield linear(f"{prefix}.in_proj", "recurrent", layer, 2 * self.inner, hidden, bias=self.bias)
        yield Tensor(f"{prefix}.conv1d", "recurrent", layer, self.inner, self.kernel, self.conv_bias, 1, "tensor")
        yield linear(f"{prefix}.x_proj", "recurrent", layer, self.dt_rank + 2 * self.state, self.inner)
        yield linear(f"{prefix}.dt_proj", "recurrent", layer, self.inner, self.dt_rank, bias=True)
        yield Tensor(f"{prefix}.A_log", "recurrent", layer, self.inner, self.state, split="tensor")
        yield Tensor(f"{prefix}.D", "recurrent", layer, self.inner, split="tensor")
        yield linear(f"{prefix}.out_proj", "recurrent", layer, hidden, self.inner, bias=self.bias)
        if self.norms:
            yield vector(f"{prefix}.dt_b_c_layernorm", layer, self.dt_rank + 2 * self.state)

    def cache(self) -> LayerGroup:
        return _state((self.kernel - 1) * self.inner, self.inner * self.state, self.state_bytes)


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2 (arXiv:2405.21060): a scalar decay per head, B and C shared by groups of heads."""

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    state_bytes: float = 2.0

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        inner = self.heads * self.head_dim
        convolved = inner + 2 * self.groups * self.state
        projected = inner + convolved + self.heads
        yield linear(f"{prefix}.in_proj", "recurrent", layer, projected, hidden, bias=self.bias)
        yield Tensor(f"{prefix}.conv1d", "recurrent", layer, convolved, self.kernel, self.conv_bias, 1, "tensor")
        yield Tensor(f"{prefix}.A_log_D_dt_bias", "recurrent", layer, 3 * self.heads, split="tensor")
        yield Tensor(f"{prefix}.norm", "recurrent", layer, inner, split="tensor")
        yield linear(f"{prefix}.out_proj", "recurrent", layer, hidden, inner, bias=self.bias)

    def cache(self) -> LayerGroup:
        inner = self.heads * self.head_dim
        convolved = inner + 2 * self.groups * self.state
        return _state((self.kernel - 1) * convolved, inner * self.state, self.state_bytes)


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta rule (arXiv:2412.06464), as Qwen3-Next lays it out."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_bytes: float = 2.0

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        yield linear(f"{prefix}.in_proj_qkv", "recurrent", layer, 2 * keys + values, hidden)
        yield linear(f"{prefix}.in_proj_z", "recurrent", layer, values, hidden)
        yield linear(f"{prefix}.in_proj_b", "recurrent", layer, self.value_heads, hidden)
        yield linear(f"{prefix}.in_proj_a", "recurrent", layer, self.value_heads, hidden)
        yield Tensor(f"{prefix}.conv1d", "recurrent", layer, 2 * keys + values, self.kernel, split="tensor")
        yield Tensor(f"{prefix}.A_log_dt_bias", "recurrent", layer, 2 * self.value_heads, split="tensor")
        yield vector(f"{prefix}.norm", layer, self.value_dim)
        yield linear(f"{prefix}.out_proj", "recurrent", layer, hidden, values)

    def cache(self) -> LayerGroup:
        convolved = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        state = self.value_heads * self.key_dim * self.value_dim
        return _state((self.kernel - 1) * convolved, state, self.state_bytes)


@dataclass(frozen=True)
class KimiDelta:
    """Kimi Delta Attention (arXiv:2510.26692): a decay per channel, short convolutions on queries, keys, values."""

    heads: int
    head_dim: int
    kernel: int
    full_gate: bool = False

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        width = self.heads * self.head_dim
        for name in ("q_proj", "k_proj", "v_proj"):
            yield linear(f"{prefix}.{name}", "recurrent", layer, width, hidden)
        yield Tensor(f"{prefix}.conv1d", "recurrent", layer, 3 * width, self.kernel, split="tensor")
        yield linear(f"{prefix}.f_a_proj", "recurrent", layer, self.head_dim, hidden, split="replicated")
        yield linear(f"{prefix}.f_b_proj", "recurrent", layer, width, self.head_dim)
        yield linear(f"{prefix}.b_proj", "recurrent", layer, self.heads, hidden)
        if self.full_gate:
            yield linear(f"{prefix}.g_proj", "recurrent", layer, width, hidden)
        else:
            yield linear(f"{prefix}.g_a_proj", "recurrent", layer, self.head_dim, hidden, split="replicated")
            yield linear(f"{prefix}.g_b_proj", "recurrent", layer, width, self.head_dim)
        yield Tensor(f"{prefix}.A_log_dt_bias", "recurrent", layer, self.heads + width, split="tensor")
        yield vector(f"{prefix}.o_norm", layer, self.head_dim)
        yield linear(f"{prefix}.o_proj", "recurrent", layer, hidden, width)

    def cache(self) -> LayerGroup:
        width = self.heads * self.head_dim
        return _state((self.kernel - 1) * 3 * width, width * self.head_dim, 4.0)
