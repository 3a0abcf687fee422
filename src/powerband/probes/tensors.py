"""The tensors a decoder is made of, named as Hugging Face checkpoints name them, without any weights at hand."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

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
    dtype: str = ""  # where the checkpoint keeps it wider or narrower than the rest

    @property
    def bias_values(self) -> int:
        return self.copies * self.outputs if self.bias else 0

    @property
    def values(self) -> int:
        return self.copies * self.outputs * self.inputs + self.bias_values


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


def vector(name: str, layer: int, size: int, *, bias: bool = False, role: WeightRole = "norm") -> Tensor:
    return Tensor(name, role, layer, size, bias=bias)


def embedding(name: str, vocab: int, hidden: int) -> Tensor:
    return Tensor(name, "embedding", -1, vocab, hidden, split="tensor")


def head(name: str, vocab: int, hidden: int, *, bias: bool = False) -> Tensor:
    return Tensor(name, "head", -1, vocab, hidden, bias, 1, "tensor")


class Mixer(Protocol):
    """The part of a layer that mixes tokens: attention or a recurrence."""

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]: ...

    def cache(self) -> LayerGroup:
        """What one layer keeps per sequence."""


class FeedForward(Protocol):
    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class Mlp:
    intermediate: int
    gated: bool = True
    bias: bool = False

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        if self.gated:
            yield linear(f"{prefix}.gate_proj", "mlp", layer, self.intermediate, hidden, bias=self.bias)
        yield linear(f"{prefix}.up_proj", "mlp", layer, self.intermediate, hidden, bias=self.bias)
        yield linear(f"{prefix}.down_proj", "mlp", layer, hidden, self.intermediate, bias=self.bias)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: routed ones, a router, and shared ones that see every token.

    ``latent`` > 0: routed experts work on that many features, between a projection down and one up.
    """

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    score_correction: bool = False  # one bias per expert that only steers the choice
    bias: bool = False
    gated: bool = True
    latent: int = 0

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        yield Tensor(f"{prefix}.gate", "other", layer, self.count, hidden, self.router_bias)
        if self.score_correction:
            yield vector(f"{prefix}.gate.e_score_correction_bias", layer, self.count, role="other")
        width = self.latent or hidden
        if self.latent:
            yield linear(f"{prefix}.latent_down", "mlp", layer, width, hidden, split="replicated")
            yield linear(f"{prefix}.latent_up", "mlp", layer, hidden, width, split="replicated")
        shapes = [("up_proj", self.intermediate, width), ("down_proj", width, self.intermediate)]
        for name, outputs, inputs in [("gate_proj", self.intermediate, width), *shapes] if self.gated else shapes:
            yield Tensor(
                f"{prefix}.experts.0.{name}", "experts", layer, outputs, inputs, self.bias, self.count, "experts", True
            )
        if self.shared_intermediate:
            shared = Mlp(self.shared_intermediate, gated=self.gated)
            yield from shared.tensors(f"{prefix}.shared_experts", layer, hidden)
        if self.shared_gate:
            yield Tensor(f"{prefix}.shared_expert_gate", "other", layer, 1, hidden)


@dataclass(frozen=True)
class Block:
    """One layer. ``shares_cache``: it reads another layer's keys and values and keeps none."""

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: int = 2  # vectors of the hidden size
    norm_bias: bool = False
    shares_cache: bool = False
    dense_beside: Mlp | None = None  # a dense MLP that runs beside the experts
    extra: tuple[Tensor, ...] = ()
    mixer_name: str = "self_attn"
    ffn_name: str = "mlp"


def add_blocks(shape: Shape, blocks: Iterable[Block]) -> None:
    """Append every block's tensors and cache to ``shape``, and note the widest MLP and the experts."""
    for layer, block in enumerate(blocks):
        prefix = f"model.layers.{layer}"
        if block.mixer is not None:
            shape.tensors += block.mixer.tensors(f"{prefix}.{block.mixer_name}", layer, shape.hidden)
        if block.mixer is None or block.shares_cache:
            shape.layers.append(LayerGroup(count=1, kind="none"))
        else:
            shape.layers.append(block.mixer.cache())
        for feed_forward in (block.feed_forward, block.dense_beside):
            if feed_forward is not None:
                shape.tensors += feed_forward.tensors(f"{prefix}.{block.ffn_name}", layer, shape.hidden)
                _note_width(shape, feed_forward)
        for index in range(block.norms):
            shape.tensors.append(vector(f"{prefix}.norm{index}", layer, shape.hidden, bias=block.norm_bias))
        shape.tensors += block.extra


def _note_width(shape: Shape, feed_forward: FeedForward) -> None:
    if isinstance(feed_forward, Mlp):
        shape.intermediate = max(shape.intermediate, feed_forward.intermediate)
    elif isinstance(feed_forward, Experts):
        shape.experts, shape.experts_per_token = feed_forward.count, feed_forward.per_token
        shape.expert_intermediate = feed_forward.intermediate
        shape.intermediate = max(shape.intermediate, feed_forward.shared_intermediate)
