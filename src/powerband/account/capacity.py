"""How many people the cache serves: sequences in flight under a traffic until it would run out.

At a random moment each of n users holds the prompt and a part of the answer; a request is seen in proportion to how
long it lives, which decoding makes proportional to its answer. The sum over n users exceeds the cache with a
probability that grows with n: ``users_at_traffic`` is the largest n for which it stays at or below one in a hundred.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powerband.account.kv_cache import sequence_bytes
from powerband.account.plan import Plan, Pool, Request
from powerband.records.memory import Capacity
from powerband.records.model import ModelSpec
from powerband.records.value import Interval
from powerband.records.workload import RequestSpec, Workload

RUN_OUT_PROBABILITY = 0.01
_AGES = 16  # points of a request's life that stand for all
_BINS = 2048  # of the cache; a sequence is rounded up to one
_SPAN = 8  # sums beyond this many caches do not occur where users are near the limit


def compute_capacity(request: Request, plan: Plan, traffic: Workload | None) -> Capacity:
    """Tokens, sequences of full length, and users of ``traffic`` where there is one."""
    pool = plan.pool
    plain = Capacity(
        kv_bytes_per_token=round(pool.bytes_per_token),
        kv_tokens=pool.tokens,
        max_concurrency=pool.max_concurrency,
        safe_prompt_tokens=safe_prompt(plan, 0),
    )
    if traffic is None or not traffic.requests:
        return plain
    users = users_at(request.model, plan, traffic.requests)
    low, high = (users_at(request.model, plan, traffic.requests, size) for size in (pool.bytes.low, pool.bytes.high))
    return Capacity(
        kv_bytes_per_token=plain.kv_bytes_per_token,
        kv_tokens=plain.kv_tokens,
        max_concurrency=plain.max_concurrency,
        users_at_traffic=float(users),
        users_interval=Interval(low=float(low), high=float(high)),
        users_at_double_length=float(users_at(request.model, plan, [_doubled(item) for item in traffic.requests])),
        safe_prompt_tokens=safe_prompt(plan, round(_mean_answer(traffic.requests))),
        traffic=traffic.source,
    )


def safe_prompt(plan: Plan, answer_tokens: int) -> int:
    """The longest prompt that one sequence alone can hold beside ``answer_tokens``."""
    alone = min(plan.max_model_len, int(plan.max_model_len * plan.pool.max_concurrency))
    return max(alone - answer_tokens, 0)


def _mean_answer(requests: Sequence[RequestSpec]) -> float:
    return sum(request.output_tokens for request in requests) / len(requests)


def _doubled(request: RequestSpec) -> RequestSpec:
    return RequestSpec(
        offset_ns=request.offset_ns, input_tokens=2 * request.input_tokens, output_tokens=2 * request.output_tokens
    )


def users_at(model: ModelSpec, plan: Plan, requests: Sequence[RequestSpec], pool_bytes: float | None = None) -> int:
    """Users that keep the probability of running out at or below one in a hundred; at most max_num_seqs."""
    size = float(plan.pool.bytes.bytes if pool_bytes is None else pool_bytes)
    if size <= 0 or not requests:
        return 0
    if plan.pool.slots:
        longest = max(request.input_tokens + request.output_tokens for request in requests)
        return plan.max_num_seqs if longest <= plan.max_model_len else 0
    values, weights = holdings(model, plan.pool, requests, plan.max_model_len)
    return most_users(values / size, weights, plan.max_num_seqs)


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
