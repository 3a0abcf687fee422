"""Putting a ModelSpec together: equal layers are counted once, equal tensors are summed."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from powerband.records.model import LayerGroup, WeightPart


def group_layers(layers: Sequence[LayerGroup]) -> tuple[tuple[LayerGroup, ...], tuple[int, ...]]:
    """Distinct layers with their counts, and for each layer the index of its group."""
    index: dict[LayerGroup, int] = {}
    order = tuple(index.setdefault(layer, len(index)) for layer in layers)
    return tuple(msgspec.structs.replace(layer, count=order.count(at)) for layer, at in index.items()), order


def merge_parts(parts: Iterable[WeightPart]) -> tuple[WeightPart, ...]:
    """One part for all tensors that share layer, role, dtype, spread and whether a quantiser touches them."""
    sums: dict[tuple[object, ...], WeightPart] = {}
    for part in parts:
        key = (part.layer, part.role, part.dtype, part.split, part.quantisable)
        before = sums.get(key)
        sums[key] = part if before is None else _add(before, part)
    return tuple(sums.values())


def main_dtype(parts: Iterable[WeightPart]) -> str:
    """The type that most bytes are stored in."""
    sizes: Counter[str] = Counter()
    for part in parts:
        sizes[part.dtype] += part.bytes
    return sizes.most_common(1)[0][0] if sizes else "none"


def _add(one: WeightPart, two: WeightPart) -> WeightPart:
    return msgspec.structs.replace(
        one, parameters=one.parameters + two.parameters, bytes=one.bytes + two.bytes, rows=one.rows + two.rows
    )
