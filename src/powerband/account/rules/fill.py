"""A cache that takes what is left: tokens of one size, or whole sequences where layers differ."""

import math

from powerband.account.estimate import Estimate
from powerband.account.kv_cache import kv_bytes_per_token, sequence_bytes
from powerband.account.plan import Pool
from powerband.records.model import ModelSpec
from powerband.records.value import Record


class Space(Record):
    """Bytes left for the cache on one rank, with the bounds that the other lines' doubts leave."""

    bytes: float
    low: float
    high: float
    why: str


def space_left(budget: float, inside: list[Estimate], share: float, why: str) -> Space:
    """``share`` of what ``inside`` leaves of ``budget``."""
    return Space(
        bytes=max(budget - sum(part.bytes for part in inside), 0) * share,
        low=max(budget - sum(part.high for part in inside), 0) * share,
        high=max(budget - sum(part.low for part in inside), 0) * share,
        why=why,
    )


def fill_pool(
    model: ModelSpec, space: Space, *, dtype_bytes: float, limit: int, tp: int, pp: int = 1, block_tokens: int = 1
) -> Pool:
    """The pool that fits into ``space``, in whole blocks."""
    per_token = kv_bytes_per_token(model, dtype_bytes, tp) / pp
    longest = sequence_bytes(model, limit, dtype_bytes, tp) / pp
    block = per_token * block_tokens
    if not longest:
        return Pool.empty(tp)
    uniform = all(group.kind in ("attention", "mla", "none") for group in model.layers)

    def whole(count: float) -> int:
        return round(math.floor(count / block) * block) if uniform and block else round(count)

    size = whole(space.bytes)
    concurrency = size / longest
    return Pool(
        bytes=Estimate(bytes=size, low=whole(space.low), high=whole(space.high), basis="computed", why=space.why),
        tokens=int(size // per_token) if uniform else int(concurrency * limit),
        max_concurrency=concurrency,
        bytes_per_token=per_token,
        dtype_bytes=dtype_bytes,
        tp=tp,
        pp=pp,
        block_tokens=block_tokens,
    )
