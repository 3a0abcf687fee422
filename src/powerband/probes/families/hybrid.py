"""Attention mixed with recurrences: Mamba, Jamba, Nemotron-H, Granite hybrid, Qwen3-Next and Qwen3.5, Kimi Linear."""

from powerband.probes.families.decoder import (
    Traits,
    feed_forward,
    finish,
    is_sparse,
    layer_count,
    layer_windows,
    read_experts,
    start_shape,
)
from powerband.probes.families.latent import latent_attention, start_head_free
from powerband.probes.keys import Keys
from powerband.probes.mixers import DeltaNet, Heads, KimiDelta, Mamba1, Mamba2
from powerband.probes.tensors import Block, Experts, FeedForward, Mixer, Mlp, Shape, add_blocks
from powerband.records.errors import RequestError

_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def read_qwen_next(keys: Keys) -> Shape:
    """Qwen3-Next and Qwen3.5: gated delta rule, with gated full attention in every fourth layer."""
    shape = start_shape(keys)
    state_bytes = _STATE_BYTES.get(keys.text("mamba_ssm_dtype"), 2.0)
    recurrent = DeltaNet(
        keys.count("linear_num_key_heads"),
        keys.count("linear_num_value_heads"),
        keys.count("linear_key_head_dim"),
        keys.count("linear_value_head_dim"),
        keys.count("linear_conv_kernel_dim"),
        state_bytes,
    )
    kv_heads = keys.optional("num_key_value_heads", default=shape.heads)
    attention = Heads(shape.heads, kv_heads, shape.head_dim, qk_norm="head", gated=True)
    kinds = keys.items("layer_types")
    interval = keys.optional("full_attention_interval", default=4) or 4
    shape.rope_dim = int(shape.head_dim * _rotary_share(keys))
    add_blocks(
        shape,
        [
            Block(attention, feed_forward(keys, layer, Traits()))
            if (kinds[layer] == "full_attention" if kinds else (layer + 1) % interval == 0)
            else Block(recurrent, feed_forward(keys, layer, Traits()), mixer_name="linear_attn")
            for layer in range(layer_count(keys))
        ],
    )
    finish(shape)
    return shape


def _rotary_share(keys: Keys) -> float:
    rope = keys.section("rope_parameters") or keys
    return rope.number("partial_rotary_factor", default=0.25)


def read_jamba(keys: Keys) -> Shape:
    """Jamba: one attention layer in a period of Mamba-1 layers, experts in every second layer."""
    shape = start_shape(keys)
    shape.rope_dim = 0
    attention = Heads(shape.heads, keys.optional("num_key_value_heads", default=shape.heads), shape.head_dim)
    mamba = _mamba1(keys, shape.hidden, prefix="mamba_", norms=True)
    period, offset = keys.count("attn_layer_period"), keys.optional("attn_layer_offset")
    expert_period, expert_offset = keys.optional("expert_layer_period", default=1), keys.optional("expert_layer_offset")
    dense = Mlp(keys.count("intermediate_size"))
    experts = Experts(keys.optional("num_experts", default=1), keys.optional("num_experts_per_tok"), dense.intermediate)
    blocks = []
    for layer in range(layer_count(keys)):
        sparse = experts.count > 1 and layer % (expert_period or 1) == expert_offset
        mixer: Mixer = attention if layer % period == offset else mamba
        name = "self_attn" if mixer is attention else "mamba"
        blocks.append(Block(mixer, experts if sparse else dense, mixer_name=name, ffn_name="feed_forward"))
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def _mamba1(keys: Keys, hidden: int, *, prefix: str = "", norms: bool = False) -> Mamba1:
    """Fields carry a prefix where the model has attention of its own beside (Jamba)."""
    rank = keys.fields.get(f"{prefix}dt_rank", keys.fields.get("time_step_rank"))
    named = 0 if prefix else keys.optional("intermediate_size")
    return Mamba1(
        inner=named or keys.optional(f"{prefix}expand", default=2) * hidden,
        state=keys.optional(f"{prefix}d_state", "state_size", default=16),
        kernel=keys.optional(f"{prefix}d_conv", "conv_kernel", default=4),
        dt_rank=rank if isinstance(rank, int) and not isinstance(rank, bool) else -(-hidden // 16),
        conv_bias=keys.flag(f"{prefix}conv_bias", "use_conv_bias", default=True),
        bias=keys.flag(f"{prefix}proj_bias", "use_bias"),
        norms=norms,
    )


def read_mamba(keys: Keys) -> Shape:
    """Mamba and Falcon-Mamba: Mamba-1 layers only, one norm each, no attention and no MLP."""
    fields = {"num_attention_heads": 1, **keys.fields}
    shape = start_shape(Keys(keys.source, fields), tied=True)
    shape.rope_dim = 0
    mixer = _mamba1(keys, shape.hidden)
    add_blocks(shape, [Block(mixer, None, norms=1, mixer_name="mixer")] * layer_count(keys))
    finish(shape)
    return shape


def _mamba2(keys: Keys, *, state_bytes: float) -> Mamba2:
    return Mamba2(
        heads=keys.count("mamba_num_heads", "mamba_n_heads", "num_heads"),
        head_dim=keys.count("mamba_head_dim", "mamba_d_head", "head_dim"),
        state=keys.count("ssm_state_size", "mamba_d_state", "state_size"),
        groups=keys.optional("n_groups", "mamba_n_groups", default=1),
        kernel=keys.optional("conv_kernel", "mamba_d_conv", default=4),
        conv_bias=keys.flag("use_conv_bias", "mamba_conv_bias", default=True),
        bias=keys.flag("mamba_proj_bias", "use_bias"),
        state_bytes=state_bytes,
    )


def read_mamba2(keys: Keys) -> Shape:
    fields = {"num_attention_heads": 1, **keys.fields}
    fields["head_dim"] = 1
    shape = start_shape(Keys(keys.source, fields), tied=True)
    shape.rope_dim = 0
    mixer = _mamba2(keys, state_bytes=2.0)
    add_blocks(shape, [Block(mixer, None, norms=1, mixer_name="mixer")] * layer_count(keys))
    finish(shape)
    return shape


def read_nemotron_h(keys: Keys) -> Shape:
    """Nemotron-H and Nemotron 3: every layer is one of Mamba-2 (M), attention (*), MLP (-) or experts (E)."""
    shape = start_shape(keys)
    shape.rope_dim = 0
    state_bytes = _STATE_BYTES.get(keys.text("mamba_ssm_cache_dtype"), 4.0)
    mamba = _mamba2(keys, state_bytes=state_bytes)
    attention = Heads(shape.heads, keys.optional("num_key_value_heads", default=shape.heads), shape.head_dim)
    kinds = _nemotron_pattern(keys)
    blocks = []
    for kind in kinds:
        mixer: Mixer | None = mamba if kind == "M" else attention if kind == "*" else None
        blocks.append(Block(mixer, _nemotron_ffn(keys, kind), norms=1, mixer_name="mixer", ffn_name="mixer"))
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def _nemotron_pattern(keys: Keys) -> list[str]:
    pattern = keys.text("hybrid_override_pattern")
    if pattern:
        kinds = list(pattern)
    else:
        names = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}
        kinds = [names.get(str(kind), "?") for kind in keys.items("layers_block_type")]
    if not kinds or any(kind not in "M*-E" for kind in kinds):
        raise RequestError(
            f"{keys.source}: the pattern of layers reads {''.join(kinds)[:40]!r}",
            hint="accepted: a string of M, *, - and E",
        )
    return kinds


def _nemotron_ffn(keys: Keys, kind: str) -> FeedForward | None:
    if kind == "-":
        return Mlp(keys.count("intermediate_size"), gated=False, bias=keys.flag("mlp_bias"))
    if kind != "E":
        return None
    return Experts(
        keys.count("n_routed_experts"),
        keys.optional("num_experts_per_tok", default=1),
        keys.count("moe_intermediate_size"),
        shared_intermediate=keys.optional("moe_shared_expert_intermediate_size")
        * keys.optional("n_shared_experts", default=1),
        score_correction=True,
        gated=False,
        latent=keys.optional("moe_latent_size"),
    )


def read_granite_hybrid(keys: Keys) -> Shape:
    """Granite 4 hybrid: Mamba-2 and attention by layer_types, experts and a shared MLP in each layer."""
    shape = start_shape(keys, tied=True)
    shape.rope_dim = 0 if keys.text("position_embedding_type") == "nope" else shape.rope_dim
    mamba = _mamba2(keys, state_bytes=2.0)
    attention = Heads(shape.heads, keys.optional("num_key_value_heads", default=shape.heads), shape.head_dim)
    kinds = keys.items("layer_types")
    count = keys.optional("num_local_experts")
    shared = keys.optional("shared_intermediate_size") or keys.count("intermediate_size")
    blocks = []
    for layer in range(layer_count(keys)):
        mixer: Mixer = attention if layer < len(kinds) and kinds[layer] == "attention" else mamba
        feed: FeedForward = Mlp(shared)
        if count:
            width = keys.count("intermediate_size")
            feed = Experts(count, keys.optional("num_experts_per_tok", default=1), width, shared_intermediate=shared)
        blocks.append(Block(mixer, feed))
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def read_kimi_linear(keys: Keys) -> Shape:
    """Kimi Linear and Kimi K3: Kimi Delta Attention with latent attention in between."""
    shape = start_head_free(keys)
    linear = keys.section("linear_attn_config")
    if linear is None:
        raise RequestError(
            f"{keys.source} has no section linear_attn_config", hint="kimi_linear configs name their layers there"
        )
    full = {int(layer) for layer in linear.items("full_attn_layers")}  # numbered from 1
    delta = KimiDelta(
        linear.count("num_heads"),
        linear.count("head_dim"),
        linear.count("short_conv_kernel_size"),
        full_gate=linear.flag("use_full_rank_gate"),
    )
    attention = latent_attention(keys, shape.heads, gated=keys.flag("mla_use_output_gate"))
    traits = Traits(score_correction=True)
    blocks = [
        Block(attention if layer + 1 in full else delta, feed_forward(keys, layer, traits))
        for layer in range(layer_count(keys))
    ]
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def read_windowed(keys: Keys) -> Shape:
    """MiMo-V2: windowed layers with heads of their own between full ones."""
    shape = start_shape(keys)
    pattern = keys.items("hybrid_layer_pattern")
    full = Heads(
        shape.heads, keys.count("num_key_value_heads"), shape.head_dim, keys.optional("v_head_dim"),
        sinks=keys.flag("add_full_attention_sink_bias"),
    )  # fmt: skip
    window = Heads(
        keys.count("swa_num_attention_heads"),
        keys.count("swa_num_key_value_heads"),
        keys.count("swa_head_dim"),
        keys.optional("swa_v_head_dim"),
        sinks=keys.flag("add_swa_attention_sink_bias"),
        window_tokens=keys.count("sliding_window"),
    )
    blocks = [
        Block(window if layer < len(pattern) and pattern[layer] else full, feed_forward(keys, layer, Traits()))
        for layer in range(layer_count(keys))
    ]
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def read_llama4(keys: Keys) -> Shape:
    """Llama 4: three chunked layers to one without positions, experts with a shared one in some layers."""
    shape = start_shape(keys)
    count, width = keys.count("num_local_experts"), keys.count("intermediate_size")
    experts = Experts(count, keys.optional("num_experts_per_tok", default=1), width, shared_intermediate=width)
    dense = Mlp(keys.count("intermediate_size_mlp", "intermediate_size"))
    kv_heads = keys.optional("num_key_value_heads", default=shape.heads)
    windows = layer_windows(keys, 4)
    blocks = []
    for layer, window in enumerate(windows):
        attention = Heads(shape.heads, kv_heads, shape.head_dim, window_tokens=window)
        blocks.append(Block(attention, experts if is_sparse(keys, layer) else dense))
    add_blocks(shape, blocks)
    finish(shape)
    return shape


def read_step(keys: Keys) -> Shape:
    """Step-3.5 and 3.7: windowed and full layers, dense layers first, then experts with a shared one."""
    shape = start_shape(keys)
    kv_heads = keys.optional("num_attention_groups", "num_key_value_heads", default=shape.heads)
    windows = layer_windows(keys)
    traits = Traits(router_bias=False, score_correction=keys.flag("use_moe_router_bias"))
    count = keys.optional("num_experts", "moe_num_experts")
    blocks = []
    for layer, window in enumerate(windows):
        attention = Heads(shape.heads, kv_heads, shape.head_dim, qk_norm="head", window_tokens=window)
        sparse = count > 1 and is_sparse(keys, layer)
        feed: FeedForward = read_experts(keys, count, traits) if sparse else Mlp(keys.count("intermediate_size"))
        blocks.append(Block(attention, feed))
    add_blocks(shape, blocks)
    finish(shape)
    if not keys.has("attention_other_setting"):
        shape.assumed.append(
            "Step: the windowed layers are read with the full layers' heads, the config names no others"
        )
    return shape
