"""How many users fill the cache: sums of what each holds at a random moment, by powers of one transform."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powerband.account.kv_cache import sequence_bytes
from powerband.account.plan import Pool
from powerband.records.model import ModelSpec
from powerband.records.workload import RequestSpec

RUN_OUT_PROBABILITY = 0.01
_AGES = 16  # points of a request's life that stand for all
_BINS = 2048  # of the cache; a sequence is rounded up to one
_SPAN = 8  # sums beyond this many caches do not occur where users are near the limit


def holdings(
    model: ModelSpec, pool: Pool, requests: Sequence[RequestSpec], limit: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes that a user holds at a random moment, and how likely each is."""
    lengths = np.array([[request.input_tokens, request.output_tokens] for request in requests], dtype=float)
    ages = (np.arange(_AGES) + 0.5) / _AGES
    tokens = np.minimum(lengths[:, :1] + lengths[:, 1:] * ages, limit)
    blocks = np.ceil(np.maximum(tokens, 1) / pool.block_tokens).astype(int)
    weights = np.repeat(np.maximum(lengths[:, 1], 1.0), _AGES)
    distinct, inverse = np.unique(blocks.ravel(), return_inverse=True)
    each = np.bincount(inverse, weights=weights)
    sizes = [sequence_bytes(model, int(count) * pool.block_tokens, pool.dtype_bytes, pool.tp) for count in distinct]
    return np.array(sizes) / pool.pp, each / each.sum()


def most_users(shares: NDArray[np.float64], weights: NDArray[np.float64], most: int) -> int:
    """The largest n with P(sum of n independent shares > 1) <= RUN_OUT_PROBABILITY, by powers of one transform."""
    bins = np.minimum(np.ceil(shares * _BINS - 1e-9), _BINS + 1).astype(int)
    single = np.bincount(bins, weights=weights, minlength=_BINS * _SPAN)
    transform = np.fft.rfft(single)

    def runs_out(users: int) -> float:
        total = np.fft.irfft(transform**users, n=single.size)
        return float(total[_BINS + 1 :].sum())

    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if middle * float(bins @ weights) > 2 * _BINS or runs_out(middle) > RUN_OUT_PROBABILITY:
            high = middle - 1
        else:
            low = middle
    return low
