"""What to do when it does not fit, or to hold more users: in order of cost, each recomputed.

First the cache (paging, narrower values), then the weights, then limits, then more cards.
"""

from collections.abc import Iterator

import msgspec

from powerband.account.capacity import users_of
from powerband.account.plan import Plan, Request
from powerband.account.rules import plan_memory
from powerband.account.weights import requantised
from powerband.records.config import TENSOR_KNOB, EngineConfig, Value
from powerband.records.errors import RequestError
from powerband.records.memory import Remedy
from powerband.records.units import format_bytes
from powerband.records.workload import Workload

_CACHE: dict[str, list[dict[str, Value]]] = {
    "vllm": [{"kv_cache_dtype": "fp8"}],
    "sglang": [{"kv_cache_dtype": "fp8_e5m2"}],
    "tensorrt-llm": [{"kv_cache_dtype": "fp8"}],
    "llamacpp": [{"cache_type_k": "q8_0", "cache_type_v": "q8_0"}],
}
_LENGTH = {"vllm": "max_model_len", "sglang": "context_length", "tensorrt-llm": "max_seq_len", "llamacpp": "n_ctx"}
# The share of a card that an engine fills; what it needs beside that lies in the rest.
_SHARE = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static", "tgi": "cuda_memory_fraction"}
_LEAST_SHARE = 0.5
_WEIGHTS = {"llamacpp": ("q8_0", "q4_0")}


def suggest_remedies(request: Request, plan: Plan, traffic: Workload | None) -> Iterator[Remedy]:
    """Remedies in order, with their numbers; one that changes nothing is left out."""
    before = users_of(request.model, plan, traffic)
    for name, change, changed in _candidates(request, plan, traffic):
        try:
            after = plan_memory(changed)
        except RequestError:
            continue
        users = users_of(changed.model, after, traffic)
        if not after.fits and not plan.fits and after.pool.tokens <= plan.pool.tokens:
            continue
        if after.fits == plan.fits and users <= before and after.pool.tokens <= plan.pool.tokens:
            continue
        yield Remedy(
            name=name,
            change=change,
            predicted=_words(plan, after, before, users),
            settings=changed.config.changes_from(request.config),
            kv_tokens=after.pool.tokens,
            users=users,
            fits=after.fits,
        )


def _words(before: Plan, after: Plan, users_before: float, users_after: float) -> str:
    parts = []
    if after.weights.bytes != before.weights.bytes:
        parts.append(f"weights {format_bytes(before.weights.bytes)} -> {format_bytes(after.weights.bytes)}")
    parts.append(f"cache {before.pool.tokens:,} -> {after.pool.tokens:,} tokens")
    parts.append(f"{users_after:.0f} users instead of {users_before:.0f}")
    end = "" if before.fits else "; then it fits"
    return ", ".join(parts) + (end if after.fits else "; still does not fit")


def _candidates(request: Request, plan: Plan, traffic: Workload | None) -> Iterator[tuple[str, str, Request]]:
    engine = request.config.engine
    if plan.refusal:  # no memory would help: only another number of cards
        yield from _cards(request, [count for count in (1, 2, 4, 8) if count <= request.count])
        return
    yield from _smaller_share(request, plan)
    if engine == "transformers":
        paged = EngineConfig(engine="vllm", model=request.config.model)
        yield "paged cache", "serve it with vLLM: pages instead of padded tensors", _with(request, config=paged)
    for knobs in _CACHE.get(engine, []):
        if all(request.config.knobs.get(name) != value for name, value in knobs.items()):
            words = ", ".join(f"{name}={value}" for name, value in knobs.items())
            yield "KV cache dtype", words, _with(request, config=request.config.replace(**knobs))
    if request.model.weight_dtype in ("bf16", "f16", "f32"):
        for name in _WEIGHTS.get(engine, ("fp8", "awq")):
            words = {"awq": "AWQ int4 weights", "fp8": "fp8 weights"}.get(name, f"{name} weights")
            yield "weight quantisation", words, _with(request, model=requantised(request.model, name))
    yield from _limits(request, plan, traffic)
    now = request.config.knobs.get(TENSOR_KNOB.get(engine, ""), request.count)
    yield from _cards(request, [factor * (now if isinstance(now, int) else 1) for factor in (2, 4, 8)])


def _smaller_share(request: Request, plan: Plan) -> Iterator[tuple[str, str, Request]]:
    """The largest share, in steps of a hundredth, that leaves room for what lies beside it."""
    knob = _SHARE.get(request.config.engine)
    if knob is None or plan.unused_bytes >= 0:
        return
    now = request.config.knobs.get(knob, 1.0)
    most = now if isinstance(now, int | float) else 1.0
    for hundredths in range(round(100 * most) - 1, round(100 * _LEAST_SHARE) - 1, -1):
        changed = _with(request, config=request.config.replace(**{knob: hundredths / 100}))
        if plan_memory(changed).fits:
            yield "memory share", f"{knob}={hundredths / 100}", changed
            return


def _limits(request: Request, plan: Plan, traffic: Workload | None) -> Iterator[tuple[str, str, Request]]:
    engine = request.config.engine
    knob = _LENGTH.get(engine)
    wanted = _wanted_length(plan, traffic)
    if knob and engine != "llamacpp" and wanted and wanted < plan.max_model_len:
        yield "length limit", f"{knob}={wanted}", _with(request, config=request.config.replace(**{knob: wanted}))
    if engine == "vllm":
        for name, value in (("max_num_batched_tokens", 2048), ("max_num_seqs", 64)):
            now = request.config.knobs.get(name)
            if not isinstance(now, int) or now > value:
                yield "batch limit", f"{name}={value}", _with(request, config=request.config.replace(**{name: value}))


def _wanted_length(plan: Plan, traffic: Workload | None) -> int:
    """What the traffic needs, or what the cache can hold of one sequence, in steps of 256."""
    if traffic is not None and traffic.requests:
        return -(-traffic.longest_tokens // 256) * 256
    return int(plan.pool.max_concurrency * plan.max_model_len) // 256 * 256 if plan.pool.max_concurrency < 1 else 0


def _cards(request: Request, counts: list[int]) -> Iterator[tuple[str, str, Request]]:
    if request.device.kind == "cpu" or request.config.engine not in TENSOR_KNOB:
        return
    knob = TENSOR_KNOB[request.config.engine]
    for count in counts:
        if count <= 8 and not request.model.refuses_split(count):
            config = request.config.replace(**{knob: count})
            yield (
                "more cards" if count > request.count else "cards that share the heads",
                f"{count} x {request.device.name}, {knob}={count}",
                _with(request, config=config, count=count),
            )


def _with(request: Request, **changes: object) -> Request:
    return msgspec.structs.replace(request, **changes)
