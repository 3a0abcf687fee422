"""From a config.json to a ModelSpec by closed form: every tensor's shape follows from the config, no weights needed."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from powerband.probes.families import read_shape
from powerband.probes.keys import Keys
from powerband.probes.spec import group_layers, merge_parts
from powerband.probes.tensors import Shape, Tensor
from powerband.records.errors import RequestError
from powerband.records.model import ModelSpec, WeightPart
from powerband.records.weight_format import BF16, F16, F32, WeightFormat

_CONFIG_LIMIT_BYTES = 32 << 20
_DTYPES = {"bfloat16": BF16, "float16": F16, "float32": F32}


def read_config(path: Path) -> dict[str, Any]:
    """The object in a config.json; raises RequestError where it is not one."""
    if path.stat().st_size > _CONFIG_LIMIT_BYTES:
        raise RequestError(
            f"{path} is larger than any config.json", hint="name the folder that holds the model's config"
        )
    try:
        fields = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise RequestError(f"{path} is not JSON: {error}", hint="a model's config.json is expected") from None
    if not isinstance(fields, dict):
        raise RequestError(f"{path} holds a {type(fields).__name__}, not an object", hint="a config.json is expected")
    return fields


def model_from_config(name: str, fields: dict[str, Any], source: str) -> ModelSpec:
    """Shape, cache layout and weights of the model that ``fields`` describes; RequestError for what is not one."""
    outer = Keys(source, fields)
    keys = outer.section("text_config", "llm_config", "language_config") or outer
    shape = read_shape(keys)
    plain = _DTYPES.get(keys.text("torch_dtype", "dtype") or outer.text("torch_dtype", "dtype"))
    assumed = list(shape.assumed)
    if plain is None:
        plain = BF16
        assumed.append("no dtype in the config: bf16")
    parts = merge_parts(_part(tensor, plain) for tensor in shape.tensors)
    return build_spec(name, keys, shape, parts, plain, assumed)


def build_spec(
    name: str, keys: Keys, shape: Shape, parts: tuple[WeightPart, ...], plain: WeightFormat, assumed: list[str]
) -> ModelSpec:
    groups, order = group_layers(shape.layers)
    total = sum(part.parameters for part in parts)
    routed = sum(part.parameters for part in parts if part.role == "experts")
    idle = routed * (1 - shape.experts_per_token / shape.experts) if shape.experts else 0
    shares: Counter[str] = Counter()
    for part in parts:
        shares[part.dtype] += part.bytes
    architectures = keys.items("architectures")
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
        weight_dtype=shares.most_common(1)[0][0],
        basis="computed",
        context_tokens=keys.optional("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
        compute_dtype=plain.name,
        intermediate=shape.intermediate,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        expert_intermediate=shape.expert_intermediate,
        parts=parts,
        rope_dim=shape.rope_dim,
        tied=shape.tied,
        assumed=tuple(assumed),
    )


def _part(tensor: Tensor, plain: WeightFormat) -> WeightPart:
    return WeightPart(
        role=tensor.role,
        layer=tensor.layer,
        parameters=tensor.values,
        bytes=plain.bytes_of(tensor.outputs, tensor.inputs, tensor.copies) + round(tensor.bias_values * plain.bits / 8),
        dtype=plain.name,
        split=tensor.split,
        quantisable=tensor.linear,
        rows=tensor.outputs * tensor.copies,
    )
