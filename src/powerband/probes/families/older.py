"""Decoders from before Llama: learned positions or ALiBi, biases, LayerNorm with bias, plain MLPs."""

from dataclasses import dataclass

from powerband.probes.families.decoder import finish, layer_count, start_shape
from powerband.probes.keys import Keys
from powerband.probes.mixers import Heads
from powerband.probes.tensors import Block, Mlp, Shape, Tensor, add_blocks, vector
from powerband.records.errors import RequestError


@dataclass(frozen=True)
class Older:
    """``positions`` adds a learned table of that many rows beyond the context; ``embed_norm`` one norm after it."""

    positions: int | None = None
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    norms: int = 2
    norm_bias: bool = True
    tied: bool = True
    head_bias: bool = False
    embed_norm: bool = False
    rotary: bool = False
    gated: bool = False


OLDER: dict[str, Older] = {
    "gpt2": Older(positions=0),
    "gpt_bigcode": Older(positions=0),
    "gpt_neo": Older(positions=0, qkv_bias=False),
    "gptj": Older(qkv_bias=False, out_bias=False, norms=1, tied=False, head_bias=True, rotary=True),
    "gpt_neox": Older(tied=False, rotary=True),
    "opt": Older(positions=2),
    "mpt": Older(qkv_bias=False, out_bias=False, mlp_bias=False, norm_bias=False),
    "bloom": Older(embed_norm=True),
    "falcon": Older(qkv_bias=False, out_bias=False, mlp_bias=False, norms=1, rotary=True),
    "phi": Older(norms=1, tied=False, head_bias=True, rotary=True),
    "phi-msft": Older(norms=1, tied=False, head_bias=True, rotary=True),
    "chatglm": Older(
        qkv_bias=True, out_bias=False, mlp_bias=False, norm_bias=False, tied=False, rotary=True, gated=True
    ),
}


def read_older(keys: Keys) -> Shape:
    """A decoder by its entry in OLDER."""
    kind = keys.text("model_type")
    traits = OLDER[kind]
    if kind == "falcon":
        traits = _falcon(keys)
    shape = start_shape(keys, tied=traits.tied)
    if not traits.rotary:
        shape.rope_dim = 0
    if traits.positions is not None:
        rows = keys.count("n_positions", "max_position_embeddings", "max_seq_len", "n_ctx") + traits.positions
        shape.tensors.append(Tensor("model.embed_positions", "embedding", -1, rows, shape.hidden))
    if traits.embed_norm:
        shape.tensors.append(vector("model.embed_norm", -1, shape.hidden, bias=True))
    attention = Heads(
        shape.heads, _kv_heads(keys, shape.heads), shape.head_dim, bias=traits.qkv_bias, out_bias=traits.out_bias
    )
    width = keys.optional("n_inner", "ffn_hidden_size", "ffn_dim", "intermediate_size", "ffn_embed_dim")
    width = width or int(keys.number("expansion_ratio", default=4) * shape.hidden)
    block = Block(attention, Mlp(width, gated=traits.gated, bias=traits.mlp_bias), traits.norms, traits.norm_bias)
    add_blocks(shape, [block] * layer_count(keys))
    finish(shape, norm_bias=traits.norm_bias, head_bias=traits.head_bias)
    return shape


def _kv_heads(keys: Keys, heads: int) -> int:
    if keys.flag("multi_query_attention") and keys.has("multi_query_group_num"):
        return keys.count("multi_query_group_num")
    if keys.flag("new_decoder_architecture"):
        return keys.optional("num_kv_heads", default=heads)
    if keys.flag("multi_query", "multi_query_attention"):
        return 1
    attention = keys.section("attn_config")
    if attention and attention.has("kv_n_heads"):
        return attention.count("kv_n_heads")
    return keys.optional("num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads) or heads


def _falcon(keys: Keys) -> Older:
    bias = keys.flag("bias")
    two = keys.flag("new_decoder_architecture") or not keys.flag("parallel_attn", default=True)
    tied = not keys.has("tie_word_embeddings") or keys.flag("tie_word_embeddings")
    return Older(
        qkv_bias=bias, out_bias=bias, mlp_bias=bias, norms=2 if two else 1, rotary=not keys.flag("alibi"), tied=tied
    )


def read_nas(keys: Keys) -> Shape:
    """Nemotron from architecture search: each layer names its heads and MLP width, or that it has none."""
    shape = start_shape(keys)
    configs = keys.items("block_configs")
    if not configs:
        raise RequestError(
            f"{keys.source} has no field 'block_configs'", hint="nemotron-nas configs describe each layer there"
        )
    blocks = []
    for index, config in enumerate(configs):
        block = Keys(f"{keys.source} block {index}", config if isinstance(config, dict) else {})
        attention, ffn = block.section("attention"), block.section("ffn")
        if attention is None or ffn is None:
            raise RequestError(f"{block.source} has no attention and ffn", hint="is the file complete?")
        mixer = None
        if not attention.flag("no_op") and not attention.flag("replace_with_linear"):
            group = attention.count("n_heads_in_group")
            mixer = Heads(shape.heads, keys.divisible(shape.heads, group, "heads by n_heads_in_group"), shape.head_dim)
        mlp = None if ffn.flag("no_op") else Mlp(_nas_width(ffn.number("ffn_mult", default=1.0), shape.hidden))
        blocks.append(Block(mixer, mlp, norms=(mixer is not None) + (mlp is not None)))
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def _nas_width(multiple: float, hidden: int) -> int:
    """Two thirds of 2 x multiple x hidden, up to the next multiple of 256 (DeciLM's rule)."""
    width = int(2 * multiple * hidden / 3)
    return -(-width // 256) * 256
