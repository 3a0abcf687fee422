"""The tensors a decoder is made of, named as Hugging Face checkpoints name them, without any weights at hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from powerband.records.model import LayerGroup, Split, WeightRole


class Tensor(NamedTuple):
    """``copies`` matrices of ``outputs`` x ``inputs`` (a vector has one input), each with a bias where asked."""

    name: str
    role: WeightRole
    layer: int
    outputs: int
    inputs: int = 1
    bias: bool = False
    copies: int = 1
    split: Split = "replicated"
    linear: bool = False  # a matrix that quantisers touch unless told not to

    @property
    def matrix_values(self) -> int:
        return self.copies * self.outputs * self.inputs

    @property
    def bias_values(self) -> int:
        return self.copies * self.outputs if self.bias else 0

    @property
    def values(self) -> int:
        return self.matrix_values + self.bias_values


@dataclass
class Shape:
    """What a family reads out of a config: every tensor, and what each layer caches."""

    hidden: int
    heads: int
    head_dim: int
    vocab: int
    tensors: list[Tensor] = field(default_factory=list)
    layers: list[LayerGroup] = field(default_factory=list)
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    rope_dim: int = 0
    tied: bool = False
    assumed: list[str] = field(default_factory=list)


def linear(
    name: str, role: WeightRole, layer: int, outputs: int, inputs: int, *, bias: bool = False, split: Split = "tensor"
) -> Tensor:
    return Tensor(name, role, layer, outputs, inputs, bias, 1, split, linear=True)


def norm(name: str, layer: int, size: int, *, bias: bool = False) -> Tensor:
    return Tensor(name, "norm", layer, size, bias=bias)


def embedding(name: str, vocab: int, hidden: int) -> Tensor:
    return Tensor(name, "embedding", -1, vocab, hidden, split="tensor")


def head(name: str, vocab: int, hidden: int, *, bias: bool = False) -> Tensor:
    return Tensor(name, "head", -1, vocab, hidden, bias, 1, "tensor")


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
    gated: bool = False  # the query projection also makes an output gate
    sinks: bool = False  # one learned sink per head

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        value_dim = self.value_dim or self.head_dim
        queries = self.heads * self.head_dim * (2 if self.gated else 1)
        keys, values = self.kv_heads * self.head_dim, self.kv_heads * value_dim
        yield linear(f"{prefix}.q_proj", "attention", layer, queries, hidden, bias=self.bias)
        yield linear(f"{prefix}.k_proj", "attention", layer, keys, hidden, bias=self.bias, split="kv_heads")
        yield linear(f"{prefix}.v_proj", "attention", layer, values, hidden, bias=self.bias, split="kv_heads")
        yield linear(f"{prefix}.o_proj", "attention", layer, hidden, self.heads * value_dim, bias=self.out_bias)
        if self.qk_norm:
            many = self.qk_norm == "full"
            yield norm(f"{prefix}.q_norm", layer, self.heads * self.head_dim if many else self.head_dim)
            yield norm(f"{prefix}.k_norm", layer, self.kv_heads * self.head_dim if many else self.head_dim)
        if self.sinks:
            yield Tensor(f"{prefix}.sinks", "other", layer, self.heads)

    def cache(self, window_tokens: int = 0) -> LayerGroup:
        return LayerGroup(
            count=1,
            kind="sliding" if window_tokens else "attention",
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.value_dim if self.value_dim != self.head_dim else 0,
            window_tokens=window_tokens,
        )


def mlp(
    prefix: str, layer: int, hidden: int, intermediate: int, *, gated: bool = True, bias: bool = False
) -> Iterator[Tensor]:
    if gated:
        yield linear(f"{prefix}.gate_proj", "mlp", layer, intermediate, hidden, bias=bias)
    yield linear(f"{prefix}.up_proj", "mlp", layer, intermediate, hidden, bias=bias)
    yield linear(f"{prefix}.down_proj", "mlp", layer, hidden, intermediate, bias=bias)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: routed ones, a router, and shared ones that see every token."""

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    score_correction: bool = False  # one bias per expert that only steers the choice
    bias: bool = False
    gated: bool = True

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        yield Tensor(f"{prefix}.gate", "other", layer, self.count, hidden, self.router_bias)
        if self.score_correction:
            yield Tensor(f"{prefix}.gate.e_score_correction_bias", "other", layer, self.count)
        shapes = [("up_proj", self.intermediate, hidden), ("down_proj", hidden, self.intermediate)]
        for name, outputs, inputs in [("gate_proj", self.intermediate, hidden), *shapes] if self.gated else shapes:
            yield Tensor(
                f"{prefix}.experts.0.{name}", "experts", layer, outputs, inputs, self.bias, self.count, "experts", True
            )
        if self.shared_intermediate:
            yield from mlp(f"{prefix}.shared_experts", layer, hidden, self.shared_intermediate, gated=self.gated)
        if self.shared_gate:
            yield Tensor(f"{prefix}.shared_expert_gate", "other", layer, 1, hidden)
