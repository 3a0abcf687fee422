"""The weights as an engine holds them once it has quantised them while loading."""

import msgspec

from powerband.records import weight_format as formats
from powerband.records.config import EngineConfig
from powerband.records.model import ModelSpec, WeightPart
from powerband.records.weight_format import WeightFormat

# vLLM's names for quantising a 16-bit checkpoint while it is loaded (vllm/config/quantization.py).
_ONLINE: dict[str, WeightFormat] = {
    "fp8": formats.FP8_CHANNEL,
    "fp8_per_tensor": formats.FP8_TENSOR,
    "fp8_per_channel": formats.FP8_CHANNEL,
    "fp8_per_block": formats.FP8_BLOCK,
    "int8_per_channel_weight_only": formats.AO_INT8,
    "bitsandbytes": formats.BNB_NF4_SINGLE,
}


def stored_model(model: ModelSpec, config: EngineConfig) -> ModelSpec:
    """``model`` with the bytes and types that ``quantization`` gives its linear layers.

    As it is where the checkpoint is quantised already, the knob is not set, or its parts are not known.
    """
    kind = _ONLINE.get(str(config.knobs.get("quantization", "none")))
    if kind is None or model.quantisation != "none" or not model.parts:
        return model
    parts = tuple(_stored(part, kind) for part in model.parts)
    return msgspec.structs.replace(
        model, parts=parts, weight_bytes=sum(part.bytes for part in parts), weight_dtype=kind.name
    )


def _stored(part: WeightPart, kind: WeightFormat) -> WeightPart:
    if not part.quantisable or part.parameters <= 0:
        return part
    count = kind.bytes_of_many(part.parameters, part.rows)
    return msgspec.structs.replace(part, bytes=min(count, part.bytes), dtype=kind.name)
