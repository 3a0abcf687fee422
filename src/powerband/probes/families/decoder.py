"""Decoders in the manner of Llama: rotary attention, gated MLP, RMS norms, with what differs as fields of a table."""

from dataclasses import dataclass

from powerband.probes.keys import Keys
from powerband.probes.tensors import Experts, Heads, Shape, embedding, head, mlp, norm


@dataclass(frozen=True)
class Traits:
    """How a model type departs from Llama."""

    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    norms: int = 2  # vectors of the hidden size in each layer
    norm_bias: bool = False
    gated: bool = True
    mlp_bias: bool = False
    tied: bool = False  # where the config does not say


TRAITS: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": Traits(),
    "mixtral": Traits(),
    "qwen2": Traits(qkv_bias=True),
    "qwen2_moe": Traits(qkv_bias=True),
    "qwen3": Traits(qk_norm="head"),
    "qwen3_moe": Traits(qk_norm="head"),
}


def read_decoder(keys: Keys) -> Shape:
    """A Llama-like decoder; an unknown model_type is read as plain Llama and says so."""
    model_type = keys.text("model_type")
    traits = TRAITS.get(model_type, Traits())
    hidden, heads = keys.count("hidden_size", "n_embd", "d_model"), keys.count("num_attention_heads", "n_head")
    vocab = keys.count("vocab_size")
    head_dim = keys.optional("head_dim") or keys.divisible(hidden, heads, "hidden_size / num_attention_heads")
    shape = Shape(hidden, heads, head_dim, vocab)
    if model_type not in TRAITS:
        shape.assumed.append(f"model type {model_type or '(none)'!r} is not known: read as a Llama-like decoder")
    kv_heads = keys.optional("num_key_value_heads", default=heads) or heads
    bias = keys.flag("attention_bias", default=False)
    attention = Heads(
        heads,
        kv_heads,
        head_dim,
        bias=bias or traits.qkv_bias,
        out_bias=bias or traits.out_bias,
        qk_norm=traits.qk_norm,
    )
    experts = _experts(keys)
    shape.intermediate = keys.count("intermediate_size", "ffn_dim", "n_inner") if experts is None else 0
    shape.rope_dim = int(head_dim * keys.number("partial_rotary_factor", default=1.0))
    shape.tied = keys.flag("tie_word_embeddings", default=traits.tied)
    shape.tensors.append(embedding("model.embed_tokens", vocab, hidden))
    for layer in range(keys.count("num_hidden_layers", "n_layer")):
        prefix = f"model.layers.{layer}"
        shape.tensors += attention.tensors(f"{prefix}.self_attn", layer, hidden)
        shape.layers.append(attention.cache())
        if experts is not None:
            shape.tensors += experts.tensors(f"{prefix}.mlp", layer, hidden)
        else:
            bias = keys.flag("mlp_bias", default=traits.mlp_bias)
            shape.tensors += mlp(f"{prefix}.mlp", layer, hidden, shape.intermediate, gated=traits.gated, bias=bias)
        shape.tensors.append(norm(f"{prefix}.norms", layer, hidden * traits.norms, bias=traits.norm_bias))
    shape.tensors.append(norm("model.norm", -1, hidden, bias=traits.norm_bias))
    if not shape.tied:
        shape.tensors.append(head("lm_head", vocab, hidden))
    if experts is not None:
        shape.experts, shape.experts_per_token = experts.count, experts.per_token
        shape.expert_intermediate = experts.intermediate
    return shape


def _experts(keys: Keys) -> Experts | None:
    count = keys.optional("num_experts", "num_local_experts", "n_routed_experts")
    if count <= 1:
        return None
    return Experts(
        count,
        keys.optional("num_experts_per_tok", "experts_per_token", default=1),
        keys.count("moe_intermediate_size", "intermediate_size"),
        shared_intermediate=keys.optional("shared_expert_intermediate_size"),
        shared_gate=keys.has("shared_expert_intermediate_size"),
    )
