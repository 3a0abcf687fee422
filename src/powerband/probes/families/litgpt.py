"""Model configs in LitGPT's own keys (litgpt/config.py): one class of decoder, described by flags."""

from collections.abc import Mapping
from typing import Any

from powerband.probes.families.decoder import finish, start_shape
from powerband.probes.keys import Keys
from powerband.probes.mixers import Heads
from powerband.probes.tensors import Block, Experts, FeedForward, Mlp, Shape, add_blocks
from powerband.records.errors import RequestError

_GATED = ("LLaMAMLP", "GemmaMLP")


def from_litgpt(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields with the names that every reader looks for; any other config comes back as it is."""
    if "n_query_groups" not in fields or "mlp_class_name" not in fields:
        return dict(fields)
    name = str(fields.get("name") or "litgpt")
    return {
        **fields,
        "model_type": "litgpt",
        "architectures": [name],
        "vocab_size": fields.get("padded_vocab_size") or fields.get("vocab_size"),
        "head_dim": fields.get("head_size"),
        "max_position_embeddings": fields.get("block_size"),
        "rope_pct": fields.get("rotary_percentage"),
        # Gemma alone scales its embeddings, and it alone is sure to reuse them as the head.
        "tie_word_embeddings": bool(fields.get("scale_embeddings")),
    }


def read_litgpt(keys: Keys) -> Shape:
    """The decoder that LitGPT would build; raises RequestError for the latent attention it can describe too."""
    if keys.section("latent_attention") is not None:
        raise RequestError(
            f"{keys.source}: latent attention in LitGPT's keys is not read",
            hint="give the model's config.json from the hub",
        )
    shape = start_shape(keys)
    bias, wide_norm = keys.flag("bias"), keys.text("norm_class_name") == "LayerNorm"
    norm_kind = "full" if keys.text("norm_qk_type") == "olmo2" else "head"
    window = keys.optional("sliding_window_size")
    window = 0 if window >= keys.optional("block_size", default=window + 1) else window
    local = keys.items("sliding_window_indices")
    blocks = []
    for layer in range(keys.count("n_layer")):
        attention = Heads(
            shape.heads,
            keys.optional("n_query_groups", default=shape.heads) or shape.heads,
            shape.head_dim,
            bias=bias or keys.flag("attn_bias"),
            out_bias=bias,
            qk_norm=norm_kind if keys.flag("norm_qk") else "",
            window_tokens=window if layer < len(local) and local[layer] else 0,
        )
        blocks.append(Block(attention, _feed_forward(keys, layer, bias), _norms(keys), wide_norm))
    add_blocks(shape, blocks)
    finish(shape, norm_bias=wide_norm, head_bias=keys.flag("lm_head_bias"))
    if not shape.tied:
        shape.assumed.append("LitGPT's config does not say whether the head reuses the embedding: counted apart")
    return shape


def _norms(keys: Keys) -> int:
    second = keys.flag("norm_2", default=True) and not keys.flag("shared_attention_norm")
    marks = (
        keys.flag("norm_1", default=True),
        second,
        keys.flag("post_attention_norm"),
        keys.flag("post_mlp_norm"),
    )
    return sum(marks)


def _feed_forward(keys: Keys, layer: int, bias: bool) -> FeedForward:
    experts = keys.optional("n_expert")
    if not experts or layer < keys.optional("first_k_dense_replace"):
        return Mlp(keys.count("intermediate_size"), keys.text("mlp_class_name") in (*_GATED, "LLaMAMoE"), bias)
    width = keys.count("moe_intermediate_size", "intermediate_size")
    return Experts(
        experts,
        keys.optional("n_expert_per_token", default=1) or 1,
        width,
        shared_intermediate=width * keys.optional("n_shared_expert"),
        bias=bias,
    )
