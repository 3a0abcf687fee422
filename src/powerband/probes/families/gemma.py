"""Gemma 1 to 4: tied embeddings, window patterns, and in Gemma 3n and 4 layers that share another layer's cache."""

from powerband.probes.families.decoder import finish, layer_count, layer_windows, start_shape
from powerband.probes.keys import Keys
from powerband.probes.mixers import Heads
from powerband.probes.tensors import Block, Experts, Mlp, Shape, Tensor, add_blocks, vector

_NORMS = {"gemma": 2, "gemma2": 4, "gemma3_text": 4, "gemma4_text": 4, "gemma4": 4, "gemma3": 4}
_PERIOD = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6}


def read_gemma(keys: Keys) -> Shape:
    """Gemma 1, 2 and 3."""
    kind = keys.text("model_type")
    shape = start_shape(_with_head_dim(keys), tied=True)
    kv_heads = keys.optional("num_key_value_heads", default=shape.heads)
    norm = "head" if kind.startswith("gemma3") else ""
    windows = layer_windows(keys, _PERIOD.get(kind, 0))
    width = keys.count("intermediate_size")
    blocks = [
        Block(
            Heads(shape.heads, kv_heads, shape.head_dim, qk_norm=norm, window_tokens=window), Mlp(width), _NORMS[kind]
        )
        for window in windows
    ]
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def _with_head_dim(keys: Keys) -> Keys:
    # Gemma names its head width; 256 is the class default of every release that leaves it out.
    return Keys(keys.source, {"head_dim": 256, **{k: v for k, v in keys.fields.items() if v is not None}})


def read_gemma4(keys: Keys) -> Shape:
    """Gemma 4: full layers with wider heads whose key is the value, shared caches, experts beside a dense MLP."""
    shape = start_shape(_with_head_dim(keys), tied=True)
    count = layer_count(keys)
    shared_from = count - keys.optional("num_kv_shared_layers")
    local = keys.optional("hidden_size_per_layer_input")
    blocks = []
    for layer, window in enumerate(layer_windows(keys)):
        shares = 0 < shared_from <= layer
        width = keys.count("intermediate_size") * (2 if shares and keys.flag("use_double_wide_mlp") else 1)
        experts = _experts(keys)
        blocks.append(
            Block(
                _attention(keys, shape, window),
                experts or Mlp(width),
                norms=7 if experts else 4,
                shares_cache=shares,
                dense_beside=Mlp(width) if experts else None,
                extra=_extras(shape, layer, local, experts),
            )
        )
    add_blocks(shape, blocks)
    if local:
        vocab = keys.optional("vocab_size_per_layer_input", default=shape.vocab)
        shape.tensors.append(
            Tensor("model.embed_tokens_per_layer", "embedding", -1, vocab, count * local, split="tensor")
        )
        shape.tensors.append(Tensor("model.per_layer_model_projection", "other", -1, count * local, shape.hidden))
        shape.tensors.append(vector("model.per_layer_projection_norm", -1, local))
    finish(shape)
    return shape


def _attention(keys: Keys, shape: Shape, window: int) -> Heads:
    kv_heads = keys.optional("num_key_value_heads", default=shape.heads)
    if window:
        return Heads(shape.heads, kv_heads, shape.head_dim, qk_norm="head", window_tokens=window)
    same = keys.flag("attention_k_eq_v")
    if same:
        kv_heads = keys.optional("num_global_key_value_heads", default=kv_heads) or kv_heads
    wide = keys.optional("global_head_dim", default=shape.head_dim) or shape.head_dim
    return Heads(shape.heads, kv_heads, wide, qk_norm="head", key_is_value=same)


def _experts(keys: Keys) -> Experts | None:
    if not keys.flag("enable_moe_block"):
        return None
    width = keys.count("moe_intermediate_size", "expert_intermediate_size")
    return Experts(keys.count("num_experts"), keys.optional("top_k_experts", "num_experts_per_tok", default=1), width)


def _extras(shape: Shape, layer: int, local: int, experts: Experts | None) -> tuple[Tensor, ...]:
    extra = [vector(f"model.layers.{layer}.layer_scalar", layer, 1, role="other")]
    if experts:
        extra.append(vector(f"model.layers.{layer}.router.scale", layer, shape.hidden + experts.count, role="other"))
    if local:
        extra.append(Tensor(f"model.layers.{layer}.per_layer_gate", "other", layer, 2 * local, shape.hidden))
        extra.append(vector(f"model.layers.{layer}.post_per_layer_input_norm", layer, shape.hidden))
    return tuple(extra)
