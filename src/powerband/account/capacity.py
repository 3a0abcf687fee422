"""How many people the cache serves: sequences in flight under a traffic until it would run out.

At a random moment each of n users holds the prompt and a part of the answer; a request is seen in proportion to how
long it lives, which decoding makes proportional to its answer. The sum over n users exceeds the cache with a
probability that grows with n: ``users_at_traffic`` is the largest n for which it stays at or below one in a hundred.
"""

from collections.abc import Sequence

import msgspec

from powerband.account.plan import Plan, Request
from powerband.records.memory import Capacity
from powerband.records.model import ModelSpec
from powerband.records.value import Interval
from powerband.records.workload import RequestSpec, Workload


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
    too_long = sum(one.input_tokens + one.output_tokens > plan.max_model_len for one in traffic.requests)
    if too_long == len(traffic.requests):  # however much memory is left for them
        none = Interval(low=0.0, high=0.0)
        return msgspec.structs.replace(
            plain,
            users_at_traffic=0.0,
            users_interval=none,
            users_at_double_length=0.0,
            too_long=too_long,
            traffic=traffic.source,
        )
    users = users_at(request.model, plan, traffic.requests)
    low, high = (users_at(request.model, plan, traffic.requests, size) for size in (pool.bytes.low, pool.bytes.high))
    return msgspec.structs.replace(
        plain,
        users_at_traffic=float(users),
        users_interval=Interval(low=float(low), high=float(high)),
        users_at_double_length=float(users_at(request.model, plan, [_doubled(item) for item in traffic.requests])),
        safe_prompt_tokens=safe_prompt(plan, round(_mean_answer(traffic.requests))),
        too_long=too_long,
        traffic=traffic.source,
    )


def users_of(model: ModelSpec, plan: Plan, traffic: Workload | None) -> float:
    """Users of ``traffic``, or sequences of full length without one."""
    if not plan.fits and plan.pool.max_concurrency < 1:
        return 0.0
    if traffic is None or not traffic.requests:
        return float(int(plan.pool.max_concurrency))
    return float(users_at(model, plan, traffic.requests))


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
    from powerband.account.crowd import holdings, most_users  # numpy takes a third of the command's time

    values, weights = holdings(model, plan.pool, requests, plan.max_model_len)
    return most_users(values / size, weights, plan.max_num_seqs)
