"""Decoders in the manner of Llama: rotary attention, gated MLP, RMS norms; what differs stands in a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerband.probes.keys import Keys
from powerband.probes.mixers import Heads, Indexer
from powerband.probes.tensors import Block, Experts, FeedForward, Mlp, Shape, add_blocks, embedding, head, vector


@dataclass(frozen=True)
class Traits:
    """How a model type departs from Llama. A window period of n makes every n-th layer a full one."""

    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    norms: int = 2  # vectors of the hidden size in each layer
    norm_bias: bool = False
    gated: bool = True
    mlp_bias: bool = False
    head_bias: bool = False
    tied: bool = False  # where the config does not say
    window_period: int = 0
    sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    score_correction: bool = False
    intermediate_share: float = 1.0


TRAITS: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": Traits(),
    "ministral3": Traits(tied=True),
    "mixtral": Traits(),
    "yi": Traits(),
    "baichuan": Traits(),
    "internlm": Traits(),  # its `bias` field is read below
    "internlm2": Traits(),
    "internlm3": Traits(),
    "minicpm": Traits(tied=True),
    "granite": Traits(tied=True),
    "granitemoe": Traits(tied=True),
    "exaone": Traits(),
    "smollm3": Traits(tied=True),
    "seed_oss": Traits(qkv_bias=True),
    "ernie4_5": Traits(),
    "hunyuan_v1_dense": Traits(qk_norm="head"),
    "orion": Traits(norm_bias=True),
    "stablelm": Traits(norm_bias=True),
    "qwen": Traits(qkv_bias=True, intermediate_share=0.5),
    "qwen2": Traits(qkv_bias=True),
    "qwen2_moe": Traits(qkv_bias=True),
    "qwen3": Traits(qk_norm="head"),
    "qwen3_moe": Traits(qk_norm="head"),
    "qwen2_vl_text": Traits(qkv_bias=True),
    "qwen2_5_vl_text": Traits(qkv_bias=True),
    "qwen3_vl_text": Traits(qk_norm="head"),
    "qwen3_vl_moe_text": Traits(qk_norm="head"),
    "mimo": Traits(qkv_bias=True),
    "phi3": Traits(),
    "phimoe": Traits(qkv_bias=True, out_bias=True, norm_bias=True, head_bias=True),
    "olmo": Traits(norms=0),
    "olmo2": Traits(qk_norm="full"),
    "olmo3": Traits(qk_norm="full", window_period=4),
    "olmoe": Traits(qk_norm="full"),
    "cohere": Traits(norms=1, tied=True),
    "cohere2": Traits(norms=1, tied=True, window_period=4),
    "starcoder2": Traits(qkv_bias=True, out_bias=True, norm_bias=True, gated=False, mlp_bias=True, tied=True),
    "nemotron": Traits(norm_bias=True, gated=False),
    "glm": Traits(qkv_bias=True),
    "glm4": Traits(qkv_bias=True, norms=4),
    "glm4_moe": Traits(score_correction=True),
    "gpt_oss": Traits(qkv_bias=True, out_bias=True, window_period=2, sinks=True, expert_bias=True, router_bias=True),
    "minimax_m2": Traits(qk_norm="full", score_correction=True),
    "minimax_m3": Traits(qk_norm="head", score_correction=True),
    "exaone4": Traits(qk_norm="head", window_period=4),
    "dbrx": Traits(),
}


def read_decoder(keys: Keys) -> Shape:
    """A Llama-like decoder; an unknown model_type is read as plain Llama and says so."""
    model_type = keys.text("model_type")
    traits = TRAITS.get(model_type, Traits())
    shape = start_shape(keys, tied=traits.tied)
    if model_type not in TRAITS:
        shape.assumed.append(f"model type {model_type or '(none)'!r} is not known: read as a Llama-like decoder")
    kv_heads = keys.optional("num_key_value_heads", "n_head_kv", default=shape.heads) or shape.heads
    windows = layer_windows(keys, traits.window_period)
    bias = keys.flag("attention_bias", "bias", "add_qkv_bias", "use_qkv_bias")
    blocks = []
    for layer, window in enumerate(windows):
        attention = Heads(
            shape.heads,
            kv_heads,
            shape.head_dim,
            bias=bias or traits.qkv_bias,
            out_bias=traits.out_bias or (bias and model_type in ("llama", "internlm")),
            qk_norm=_qk_norm(keys, traits),
            sinks=traits.sinks,
            window_tokens=window,
            index=_block_index(keys, layer),
        )
        blocks.append(Block(attention, feed_forward(keys, layer, traits), traits.norms, traits.norm_bias))
    add_blocks(shape, blocks)
    finish(shape, norm_bias=traits.norm_bias, norms=traits.norms > 0, head_bias=traits.head_bias)
    return shape


def start_shape(keys: Keys, *, tied: bool = False) -> Shape:
    """Sizes every decoder names, and its input embedding; raises RequestError for what is missing or absurd."""
    hidden = keys.count("hidden_size", "n_embd", "d_model", "hidden_dim")
    heads = keys.count("num_attention_heads", "n_head", "n_heads", "num_heads")
    vocab = keys.count("vocab_size", "padded_vocab_size")
    head_dim = keys.optional("head_dim", "kv_channels", "attention_head_dim")
    head_dim = head_dim or keys.divisible(hidden, heads, "hidden_size by num_attention_heads")
    shape = Shape(hidden, heads, head_dim, vocab, tied=keys.flag("tie_word_embeddings", default=tied))
    shape.rope_dim = keys.optional("rotary_dim") or int(head_dim * rotary_share(keys))
    shape.tensors.append(embedding("model.embed_tokens", vocab, hidden))
    return shape


def finish(shape: Shape, *, norm_bias: bool = False, norms: bool = True, head_bias: bool = False) -> None:
    """The last norm, and the output head where it is not the embedding."""
    if norms:
        shape.tensors.append(vector("model.norm", -1, shape.hidden, bias=norm_bias))
    if not shape.tied:
        shape.tensors.append(head("lm_head", shape.vocab, shape.hidden, bias=head_bias))


def rotary_share(keys: Keys) -> float:
    rope = keys.section("rope_parameters")
    share = rope.number("partial_rotary_factor", default=0.0) if rope else 0.0
    return share or keys.number("partial_rotary_factor", "rotary_pct", "rope_pct", default=1.0)


def layer_count(keys: Keys) -> int:
    return keys.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def layer_windows(keys: Keys, period: int = 0) -> list[int]:
    """The window of each layer, 0 where it sees everything."""
    count = layer_count(keys)
    window = keys.optional("sliding_window", "attention_chunk_size")
    if not window or (keys.has("use_sliding_window") and not keys.flag("use_sliding_window")):
        return [0] * count
    kinds = keys.items("layer_types")
    if kinds:
        return [window if "sliding" in str(kind) or "chunked" in str(kind) else 0 for kind in kinds][:count]
    period = keys.optional("sliding_window_pattern", "_sliding_window_pattern") or period
    if period:
        return [window if (layer + 1) % period else 0 for layer in range(count)]
    return [0 if window >= keys.optional("max_position_embeddings", default=1) else window] * count


def feed_forward(keys: Keys, layer: int, traits: Traits) -> FeedForward:
    experts = keys.optional("num_experts", "num_local_experts", "n_routed_experts")
    if experts > 1 and is_sparse(keys, layer):
        return read_experts(keys, experts, traits)
    width = keys.count(
        "dense_intermediate_size", "intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "ffn_embed_dim"
    )
    bias = traits.mlp_bias or keys.flag("mlp_bias", "use_bias")
    return Mlp(int(width * traits.intermediate_share), traits.gated, bias)


def is_sparse(keys: Keys, layer: int) -> bool:
    """Whether the layer has experts, by whichever schedule the config names."""
    frequency = keys.fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[layer]) if layer < len(frequency) else True
    if layer < keys.optional("first_k_dense_replace") or layer in keys.items("mlp_only_layers"):
        return False
    step = keys.optional("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", default=1) or 1
    return (layer + 1) % step == 0


def read_experts(keys: Keys, count: int, traits: Traits) -> Experts:
    width = keys.count("moe_intermediate_size", "intermediate_size")
    shared = keys.optional("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
    shared = shared or width * keys.optional("n_shared_experts", "num_shared_experts")
    correction = traits.score_correction or keys.text("topk_method") == "noaux_tc"
    return Experts(
        count,
        keys.optional("num_experts_per_tok", "num_experts_per_token", "experts_per_token", default=1),
        width,
        shared_intermediate=shared,
        shared_gate=keys.text("model_type").startswith(("qwen2_moe", "qwen3_next", "qwen3_5_moe")),
        router_bias=traits.router_bias,
        score_correction=correction,
        bias=traits.expert_bias,
        latent=keys.optional("routed_expert_hidden_size", "moe_latent_size"),
    )


def _qk_norm(keys: Keys, traits: Traits) -> str:
    if keys.has("use_qk_norm") and not keys.flag("use_qk_norm"):
        return ""
    return traits.qk_norm or ("head" if keys.flag("use_qk_norm") else "")


def _block_index(keys: Keys, layer: int) -> Indexer | None:
    """The block-sparse indexer of MiniMax-M3: several index heads over one index key."""
    sparse = keys.section("sparse_attention_config")
    marks: Sequence[object] = sparse.items("sparse_attention_freq") if sparse else ()
    if sparse is None or layer >= len(marks) or not marks[layer]:
        return None
    size = sparse.count("sparse_index_dim")
    return Indexer(sparse.count("sparse_num_index_heads"), size, 0, 2.0 * size, weighs_heads=False)
