"""Multi-head latent attention: DeepSeek V2 and V3, Kimi K2, GLM-5, and the compressed attention of DeepSeek V4."""

from collections.abc import Iterator

from powerband.probes.families.decoder import Traits, feed_forward, finish, layer_count, start_shape
from powerband.probes.keys import Keys
from powerband.probes.mixers import Indexer, Latent
from powerband.probes.tensors import Block, Experts, Shape, Tensor, add_blocks, linear, vector
from powerband.records.model import LayerGroup

# One index key per token: 128 fp8 values and an f32 scale (DeepSeek-V3.2; the layout vLLM allocates).
_INDEX_SCALE_BYTES = 4


def read_latent(keys: Keys) -> Shape:
    """DeepSeek V2/V3/V3.2, Kimi K2, GLM-5: latent attention, dense layers first, then experts."""
    shape = start_head_free(keys)
    attention = latent_attention(keys, shape.heads)
    blocks = [Block(attention, feed_forward(keys, layer, Traits())) for layer in range(layer_count(keys))]
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def start_head_free(keys: Keys) -> Shape:
    """As start_shape, for configs whose hidden size need not divide by the heads."""
    fields = {**keys.fields, "head_dim": keys.optional("qk_nope_head_dim") + keys.optional("qk_rope_head_dim")}
    shape = start_shape(Keys(keys.source, fields))
    shape.rope_dim = keys.optional("qk_rope_head_dim")
    return shape


def latent_attention(keys: Keys, heads: int, *, gated: bool = False) -> Latent:
    index = None
    if keys.has("index_n_heads"):
        size = keys.count("index_head_dim")
        index = Indexer(keys.count("index_n_heads"), size, keys.optional("q_lora_rank"), size + _INDEX_SCALE_BYTES)
    return Latent(
        heads,
        keys.optional("q_lora_rank"),
        keys.count("kv_lora_rank"),
        keys.count("qk_nope_head_dim"),
        keys.optional("qk_rope_head_dim"),
        keys.count("v_head_dim"),
        bias=keys.flag("attention_bias"),
        gated=gated,
        index=index,
    )


class CompressedAttention:
    """DeepSeek V4: one 512-wide key-value per token in a short window, and a compressed cache of one per ``ratio``.

    Shapes as vLLM 0.26 builds them; a layer of ratio 4 has an indexer with a compressor of its own.
    """

    def __init__(self, keys: Keys, ratio: int) -> None:
        self.heads = keys.count("num_attention_heads")
        self.head_dim = keys.count("head_dim")
        self.query_rank = keys.count("q_lora_rank")
        self.out_rank = keys.count("o_lora_rank")
        self.groups = keys.count("o_groups")
        self.index_heads = keys.count("index_n_heads")
        self.index_dim = keys.count("index_head_dim")
        self.ratio = ratio
        self.window = keys.count("sliding_window")

    def tensors(self, prefix: str, layer: int, hidden: int) -> Iterator[Tensor]:
        query = self.heads * self.head_dim
        yield linear(f"{prefix}.wq_a", "attention", layer, self.query_rank, hidden, split="replicated")
        yield linear(f"{prefix}.wkv", "attention", layer, self.head_dim, hidden, split="replicated")
        yield linear(f"{prefix}.wq_b", "attention", layer, query, self.query_rank)
        yield linear(f"{prefix}.wo_a", "attention", layer, self.groups * self.out_rank, query // self.groups)
        yield linear(f"{prefix}.wo_b", "attention", layer, hidden, self.groups * self.out_rank)
        yield vector(f"{prefix}.q_norm", layer, self.query_rank + self.head_dim)
        yield vector(f"{prefix}.attn_sink", layer, self.heads, role="other")
        if self.ratio:
            yield from self._compressor(f"{prefix}.compressor", layer, hidden, self.head_dim)
        if self.ratio == 4:
            width = self.index_heads * self.index_dim
            yield linear(f"{prefix}.indexer.wq_b", "attention", layer, width, self.query_rank, split="replicated")
            yield Tensor(f"{prefix}.indexer.weights_proj", "other", layer, self.index_heads, hidden)
            yield from self._compressor(f"{prefix}.indexer.compressor", layer, hidden, self.index_dim)

    def _compressor(self, prefix: str, layer: int, hidden: int, size: int) -> Iterator[Tensor]:
        overlap = 2 if self.ratio == 4 else 1  # neighbouring windows overlap at ratio 4
        yield Tensor(f"{prefix}.wkv_wgate", "other", layer, 2 * overlap * size, hidden)
        yield Tensor(f"{prefix}.ape", "other", layer, self.ratio, overlap * size, dtype="f32")
        yield vector(f"{prefix}.norm", layer, size)

    def cache(self) -> LayerGroup:
        if not self.ratio:
            return LayerGroup(
                count=1, kind="sliding", kv_heads=1, head_dim=self.head_dim, v_head_dim=0, window_tokens=self.window
            )
        index = (self.index_dim + _INDEX_SCALE_BYTES) / self.ratio if self.ratio == 4 else 0.0
        return LayerGroup(
            count=1,
            kind="mla",
            kv_heads=1,
            head_dim=self.head_dim,
            v_head_dim=self.head_dim,
            latent_dim=self.head_dim,
            compression=self.ratio,
            index_bytes_per_token=index,
        )


def read_deepseek_v4(keys: Keys) -> Shape:
    """DeepSeek V4: compressed attention, hyper-connections, experts in every layer."""
    fields = {**keys.fields, "head_dim": keys.count("head_dim")}
    shape = start_shape(Keys(keys.source, fields))
    shape.rope_dim = keys.optional("qk_rope_head_dim")
    ratios = [int(ratio) for ratio in keys.items("compress_ratios")]
    blocks = []
    for layer in range(layer_count(keys)):
        attention = CompressedAttention(keys, ratios[layer] if layer < len(ratios) else 0)
        experts = feed_forward(keys, layer, Traits())
        if isinstance(experts, Experts) and layer < keys.optional("num_hash_layers"):
            experts = Experts(experts.count, experts.per_token, experts.intermediate, experts.shared_intermediate)
        blocks.append(Block(attention, experts, extra=_connections(keys, shape, layer)))
    add_blocks(shape, blocks)
    finish(shape)
    shape.assumed.append("DeepSeek V4: layer shapes read from vLLM 0.26; its window caches count as one per layer")
    return shape


def _connections(keys: Keys, shape: Shape, layer: int) -> tuple[Tensor, ...]:
    """Hyper-connections of the attention and of the experts, kept in f32."""
    streams = keys.optional("hc_mult", default=1)
    mix = (2 + streams) * streams
    return (
        Tensor(f"model.layers.{layer}.hc_fn", "other", layer, 2 * mix, streams * shape.hidden, dtype="f32"),
        Tensor(f"model.layers.{layer}.hc_base", "other", layer, 2 * (mix + 3), dtype="f32"),
    )
