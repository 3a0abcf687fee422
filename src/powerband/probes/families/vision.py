"""Vision towers that multimodal checkpoints carry: engines load them with the language model."""

from collections.abc import Callable, Iterator

from powerband.probes.keys import Keys
from powerband.probes.tensors import Tensor


def read_vision(outer: Keys, text_hidden: int) -> tuple[list[Tensor], list[str]]:
    """The tower's tensors, and what had to be assumed; both empty for a text-only model."""
    vision = outer.section("vision_config")
    if vision is None and outer.text("model_type") == "llama4":
        vision = Keys(outer.source, {"model_type": "llama4_vision_model"})
        return list(_llama4(vision, outer, text_hidden)), ["its vision tower is taken to have the sizes of Llama 4's"]
    if vision is None:
        return [], []
    kind = vision.text("model_type") or outer.text("model_type")
    for names, reader in _READERS:
        if kind in names:
            return list(reader(vision, outer, text_hidden)), []
    return [], [f"vision tower of type {kind or '(none)'!r} is not known and not counted"]


def _matrix(name: str, outputs: int, inputs: int, *, bias: bool = False, copies: int = 1) -> Tensor:
    return Tensor(f"visual.{name}", "vision", -1, outputs, inputs, bias, copies)


def _qwen(vision: Keys, outer: Keys, text_hidden: int) -> Iterator[Tensor]:
    """Qwen3-VL and Qwen3.5: 3-D patches, learned positions, a merger, and one more merger per deepstack level."""
    hidden, width, depth = vision.count("hidden_size"), vision.count("intermediate_size"), vision.count("depth")
    patch = vision.count("patch_size")
    yield _matrix("patch_embed", hidden, 3 * vision.optional("temporal_patch_size", default=2) * patch**2, bias=True)
    yield _matrix("pos_embed", vision.optional("num_position_embeddings"), hidden)
    yield from _encoder(hidden, width, depth)
    merged = hidden * vision.optional("spatial_merge_size", default=2) ** 2
    deep = len(vision.items("deepstack_visual_indexes"))
    out = vision.optional("out_hidden_size", default=text_hidden)
    yield _matrix("merger.norms", 2 * (hidden + deep * merged), 1)
    yield _matrix("merger.fc1", merged, merged, bias=True, copies=1 + deep)
    yield _matrix("merger.fc2", out, merged, bias=True, copies=1 + deep)


def _encoder(hidden: int, width: int, depth: int) -> Iterator[Tensor]:
    """Pre-norm blocks with biases throughout, as SigLIP and the Qwen towers have them."""
    yield _matrix("blocks.attn", 4 * hidden, hidden, bias=True, copies=depth)
    yield _matrix("blocks.fc1", width, hidden, bias=True, copies=depth)
    yield _matrix("blocks.fc2", hidden, width, bias=True, copies=depth)
    yield _matrix("blocks.norms", 4 * hidden, 1, copies=depth)


def _siglip(vision: Keys, outer: Keys, text_hidden: int) -> Iterator[Tensor]:
    """Gemma 3; sizes the config leaves out are SigLIP-So400m's, which every release uses."""
    hidden = vision.optional("hidden_size", default=1152)
    depth, width = vision.optional("num_hidden_layers", default=27), vision.optional("intermediate_size", default=4304)
    patch, image = vision.optional("patch_size", default=14), vision.optional("image_size", default=896)
    yield _matrix("patch_embed", hidden, 3 * patch**2, bias=True)
    yield _matrix("pos_embed", (image // patch) ** 2, hidden)
    yield from _encoder(hidden, width, depth)
    yield _matrix("post_norm", 2 * hidden, 1)
    yield _matrix("projector", text_hidden, hidden)
    yield _matrix("projector_norm", hidden, 1)


def _pixtral(vision: Keys, outer: Keys, text_hidden: int) -> Iterator[Tensor]:
    hidden, width = vision.count("hidden_size"), vision.count("intermediate_size")
    depth, patch = vision.count("num_hidden_layers"), vision.count("patch_size")
    yield _matrix("patch_conv", hidden, 3 * patch**2)
    yield _matrix("ln_pre", hidden, 1)
    yield from _gated_encoder(hidden, width, depth, norms=2 * hidden)
    merge = outer.optional("spatial_merge_size", default=1)
    bias = outer.flag("multimodal_projector_bias")
    yield _matrix("projector.norm", hidden, 1)
    yield _matrix("projector.merger", hidden, hidden * merge**2)
    yield _matrix("projector.linear_1", text_hidden, hidden, bias=bias)
    yield _matrix("projector.linear_2", text_hidden, text_hidden, bias=bias)


def _gated_encoder(hidden: int, width: int, depth: int, *, norms: int) -> Iterator[Tensor]:
    yield _matrix("blocks.attn", 4 * hidden, hidden, copies=depth)
    yield _matrix("blocks.mlp", 3 * width, hidden, copies=depth)
    yield _matrix("blocks.norms", norms, 1, copies=depth)


def _gemma4(vision: Keys, outer: Keys, text_hidden: int) -> Iterator[Tensor]:
    hidden, width = vision.count("hidden_size"), vision.count("intermediate_size")
    yield _matrix("patch_embed", hidden, 3 * vision.count("patch_size") ** 2)
    yield _matrix("pos_embed", 2 * vision.optional("position_embedding_size"), hidden)
    norms = 4 * hidden + 2 * vision.optional("head_dim")
    yield from _gated_encoder(hidden, width, vision.count("num_hidden_layers"), norms=norms)
    yield _matrix("projector", text_hidden, hidden)


def _llama4(vision: Keys, outer: Keys, text_hidden: int) -> Iterator[Tensor]:
    """Llama 4; sizes the config leaves out are those of both its releases."""
    hidden, width = vision.optional("hidden_size", default=1408), vision.optional("intermediate_size", default=5632)
    depth, patch = vision.optional("num_hidden_layers", default=34), vision.optional("patch_size", default=14)
    image, out = vision.optional("image_size", default=336), vision.optional("vision_output_dim", default=4096)
    yield _matrix("patch_embed", hidden, 3 * patch**2)
    yield _matrix("pos_embed", (image // patch) ** 2 + 2, hidden)  # a class token, and its position
    yield from _encoder(hidden, width, depth)
    yield _matrix("outer_norms", 4 * hidden, 1)
    inner = vision.optional("projector_input_dim", default=4096)
    yield _matrix("adapter.fc1", inner, 4 * hidden)  # four patches are shuffled into one
    yield _matrix("adapter.fc2", out, inner)
    yield _matrix("projector", text_hidden, out)


def _moon(vision: Keys, outer: Keys, text_hidden: int) -> Iterator[Tensor]:
    """MoonViT of Kimi K2.5: learned positions, a two-layer projector over merged patches."""
    hidden, width = vision.count("vt_hidden_size", "hidden_size"), vision.count("vt_intermediate_size")
    depth, patch = vision.count("vt_num_hidden_layers"), vision.count("patch_size")
    yield _matrix("patch_embed", hidden, 3 * patch**2, bias=True)
    yield _matrix("pos_embed", vision.optional("init_pos_emb_height") * vision.optional("init_pos_emb_width"), hidden)
    yield from _encoder(hidden, width, depth)
    merged = 4 * hidden
    yield _matrix("projector.norms", 4 * hidden, 1)
    yield _matrix("projector.linear_1", merged, merged, bias=True)
    yield _matrix("projector.linear_2", text_hidden, merged, bias=True)


_READERS: tuple[tuple[frozenset[str], Callable[[Keys, Keys, int], Iterator[Tensor]]], ...] = (
    (frozenset({"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision"}), _qwen),
    (frozenset({"siglip_vision_model"}), _siglip),
    (frozenset({"pixtral"}), _pixtral),
    (frozenset({"llama4_vision_model"}), _llama4),
    (frozenset({"gemma4_vision"}), _gemma4),
    (frozenset({"kimi_k25", "kimi_k3", "moonvit"}), _moon),
)
