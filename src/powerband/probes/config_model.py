"""From a config.json to a ModelSpec by closed form: every tensor's shape follows from the config, no weights needed."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from powerband.probes.families import read_shape
from powerband.probes.families.litgpt import from_litgpt
from powerband.probes.families.vision import read_vision
from powerband.probes.keys import Keys
from powerband.probes.quantisation import Scheme, read_scheme
from powerband.probes.spec import group_layers, main_dtype, merge_parts
from powerband.probes.tensors import Shape, Tensor
from powerband.records.errors import RequestError, in_words
from powerband.records.model import ModelSpec, WeightPart
from powerband.records.value import Basis
from powerband.records.weight_format import BF16, F16, F32, WeightFormat

_CONFIG_LIMIT_BYTES = 32 << 20
_DTYPES = {"bfloat16": BF16, "float16": F16, "float32": F32}
_WIDE = {"f32": F32}


def read_config(path: Path) -> dict[str, Any]:
    """The object in a config.json; raises RequestError where it is not one."""
    if path.stat().st_size > _CONFIG_LIMIT_BYTES:
        raise RequestError(
            f"{path} is larger than any config.json", hint="name the folder that holds the model's config"
        )
    return decode_config(path.read_bytes(), str(path))


def decode_config(data: bytes, source: str) -> dict[str, Any]:
    try:
        # The standard reader, since checkpoints hold Infinity, for which JSON has no word.
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{source} is not JSON: {in_words(error)}", hint="a model's config.json is expected"
        ) from None
    if not isinstance(fields, dict):
        raise RequestError(f"{source} holds a {type(fields).__name__}, not an object", hint="a config.json is expected")
    return fields


def model_from_config(name: str, fields: dict[str, Any], source: str) -> ModelSpec:
    """Shape, cache layout and weights of the model that ``fields`` describes; RequestError for what is not one."""
    outer = Keys(source, from_litgpt(fields))
    keys = text_keys(outer)
    shape = read_shape(keys)
    towers, unknown = read_vision(outer, shape.hidden)
    shape.tensors += towers
    plain, assumed = plain_dtype(outer, keys)
    scheme = read_scheme(outer if outer.section("quantization_config", "quantization") else keys)
    parts = merge_parts(part_of(tensor, plain, scheme) for tensor in shape.tensors)
    notes = (*shape.assumed, *unknown, *assumed)
    return build_spec(name, outer, keys, shape, parts, plain=plain.name, scheme=scheme.name, assumed=notes)


def text_keys(outer: Keys) -> Keys:
    """The fields of the language model inside a multimodal config, or the config itself."""
    inner = outer.section("text_config", "llm_config", "language_config")
    if inner is None:
        return outer
    fields = dict(inner.fields)
    fields.setdefault("model_type", outer.text("model_type"))
    if outer.has("tie_word_embeddings"):
        fields.setdefault("tie_word_embeddings", outer.fields["tie_word_embeddings"])
    return Keys(outer.source, fields)


def plain_dtype(outer: Keys, keys: Keys) -> tuple[WeightFormat, tuple[str, ...]]:
    word = keys.text("torch_dtype", "dtype") or outer.text("torch_dtype", "dtype")
    if word in _DTYPES:
        return _DTYPES[word], ()
    return BF16, ("no dtype in the config: bf16",)


def build_spec(
    name: str,
    outer: Keys,
    keys: Keys,
    shape: Shape,
    parts: tuple[WeightPart, ...],
    *,
    plain: str,
    scheme: str,
    basis: Basis = "computed",
    assumed: Iterable[str] = (),
) -> ModelSpec:
    """Shape and parts as one record."""
    groups, order = group_layers(shape.layers)
    total = sum(part.parameters for part in parts)
    routed = sum(part.parameters for part in parts if part.role == "experts")
    idle = routed * (1 - shape.experts_per_token / shape.experts) if shape.experts else 0
    architectures = outer.items("architectures") or keys.items("architectures")
    return ModelSpec(
        name=name,
        architecture=str(architectures[0]) if architectures else keys.text("model_type", default="unknown"),
        layers=groups,
        layer_order=order,
        hidden=shape.hidden,
        heads=shape.heads,
        head_dim=shape.head_dim,
        vocab=shape.vocab,
        parameters=total,
        active_parameters=total - round(idle),
        weight_bytes=sum(part.bytes for part in parts),
        weight_dtype=main_dtype(parts),
        basis=basis,
        context_tokens=keys.optional(
            "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx"
        ),
        compute_dtype=plain,
        intermediate=shape.intermediate,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        expert_intermediate=shape.expert_intermediate,
        parts=parts,
        rope_dim=shape.rope_dim,
        tied=shape.tied,
        quantisation=scheme,
        assumed=tuple(dict.fromkeys(assumed)),
    )


def part_of(tensor: Tensor, plain: WeightFormat, scheme: Scheme) -> WeightPart:
    """A tensor's bytes in the format its scheme gives it; biases stay in the model's dtype."""
    narrow = scheme.format_of(tensor)
    kind = narrow or _WIDE.get(tensor.dtype, plain)
    bias = round(tensor.bias_values * plain.bits / 8)
    return WeightPart(
        role=tensor.role,
        layer=tensor.layer,
        parameters=tensor.values,
        bytes=kind.bytes_of(tensor.outputs, tensor.inputs, tensor.copies) + bias,
        dtype=kind.name,
        split=tensor.split,
        quantisable=tensor.linear,
        rows=tensor.outputs * tensor.copies,
    )
