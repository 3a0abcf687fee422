"""vLLM's block pool: layers in groups of one page size, tokens as the engine reports them.

Rules of v1/core/kv_cache_utils.py: layers that keep the same number of tokens form one pool; otherwise page sizes are
made equal (a larger block where they divide, padding else), layers are split into groups of equal length, and one
layer of each group shares a tensor.
"""

from collections.abc import Sequence

import msgspec

from powerband.account.kv_cache import layer_bytes_per_token, state_bytes
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.value import Record


class Layout(Record):
    """``block_bytes`` hold one block of every shared tensor; a full-length request takes ``blocks_per_request``."""

    block_bytes: float
    blocks_per_request: float
    block_tokens: int
    groups: int


class _Spec(Record):
    """Layers of one kind: a page of ``page_bytes`` for ``block_tokens``."""

    count: int
    kind: str
    page_bytes: float
    block_tokens: int
    window_tokens: int = 0


def lay_out_blocks(
    model: ModelSpec,
    *,
    block_tokens: int,
    dtype_bytes: float,
    tp: int,
    limit: int,
    in_flight: int,
    pp: int = 1,
    states: int = 1,
) -> Layout | None:
    """The pool of one rank for requests of up to ``limit`` tokens; None for a model that caches nothing.

    ``states`` are the recurrent states a request holds in each layer: one, or two with prefix caching.
    """
    layers = [group for group in model.layers if group.kind != "none"]
    if not layers:
        return None
    block = _hybrid_block(layers, block_tokens, dtype_bytes, tp)
    specs = [_spec(group, block, dtype_bytes, tp, pp) for group in layers]
    if all(spec.kind == "full" for spec in specs):
        total = sum(spec.count * spec.page_bytes for spec in specs)
        return Layout(block_bytes=total, blocks_per_request=-(-limit // block), block_tokens=block, groups=1)
    specs = _merge(_equal_pages(specs))
    size = _group_size([spec.count for spec in specs])
    page = max(spec.page_bytes for spec in specs)
    blocks = sum(-(-spec.count // size) * _blocks(spec, limit, in_flight, states) for spec in specs)
    groups = sum(-(-spec.count // size) for spec in specs)
    return Layout(block_bytes=page * size, blocks_per_request=blocks, block_tokens=block, groups=groups)


def _spec(group: LayerGroup, block: int, dtype_bytes: float, tp: int, pp: int) -> _Spec:
    count = -(-group.count // pp)
    if group.kind == "recurrent":
        return _Spec(count=count, kind="recurrent", page_bytes=state_bytes(group, tp), block_tokens=block)
    page = block * layer_bytes_per_token(group, dtype_bytes, tp)
    kind = "window" if group.kind == "sliding" else "full"
    return _Spec(count=count, kind=kind, page_bytes=page, block_tokens=block, window_tokens=group.window_tokens)


def _hybrid_block(layers: Sequence[LayerGroup], block: int, dtype_bytes: float, tp: int) -> int:
    """With recurrent layers, attention blocks grow until one page holds a state (in steps of the block size)."""
    state = max((state_bytes(group, tp) for group in layers if group.kind == "recurrent"), default=0.0)
    per_token = max((layer_bytes_per_token(group, dtype_bytes, tp) for group in layers), default=0.0)
    if not state or not per_token:
        return block
    return max(block, block * -(-int(state) // int(block * per_token)))


def _equal_pages(specs: Sequence[_Spec]) -> list[_Spec]:
    page = max(spec.page_bytes for spec in specs)
    equal = []
    for spec in specs:
        ratio = page / spec.page_bytes if spec.page_bytes else 1.0
        grows = spec.kind != "recurrent" and ratio == int(ratio)
        block = spec.block_tokens * int(ratio) if grows else spec.block_tokens
        equal.append(msgspec.structs.replace(spec, page_bytes=page, block_tokens=block))
    return equal


def _merge(specs: Sequence[_Spec]) -> list[_Spec]:
    merged: dict[tuple[str, int, int], _Spec] = {}
    for spec in specs:
        key = (spec.kind, spec.block_tokens, spec.window_tokens)
        count = spec.count + (merged[key].count if key in merged else 0)
        merged[key] = msgspec.structs.replace(spec, count=count)
    return list(merged.values())


def _group_size(counts: Sequence[int]) -> int:
    """Layers in a group: the smallest kind's count, or the largest where the two are within half of each other."""
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


def _blocks(spec: _Spec, limit: int, in_flight: int, states: int) -> int:
    """Blocks of one group for one request of ``limit`` tokens."""
    if spec.kind == "recurrent":
        return states
    if spec.kind == "window":
        kept = min(spec.window_tokens - 1 + in_flight, limit)
        return -(-kept // spec.block_tokens) + 1
    return -(-limit // spec.block_tokens)
