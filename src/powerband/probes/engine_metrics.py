"""Engines' own /metrics under equal names: one map per engine, and a reason wherever a value is not there."""

import math
from collections.abc import Callable
from typing import Literal

import msgspec

from powerband.probes.prometheus import Scrape, parse_metrics
from powerband.records.sample import EngineSample
from powerband.records.value import Measured, Missing, Record

Dialect = Literal["llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "powerband"]


class _Source(Record):
    """Names an engine has used for one value, newest first; how label sets (ranks, models) join."""

    names: tuple[str, ...]
    join: Literal["sum", "mean"] = "sum"
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    optional: bool = False  # written only once a feature is on, so that its absence says nothing


# Sources: llama.cpp tools/server (page recorded from a running server, tests/golden); vLLM docs/usage/metrics.md and
# vllm/v1/metrics/loggers.py; SGLang docs/references/production_metrics.md; TGI docs/source/reference/metrics.md;
# TensorRT-LLM trtllm-serve and Triton's nv_trt_llm_* families.
_MAPS: dict[Dialect, dict[str, _Source]] = {
    "llamacpp": {
        "running": _Source(names=("llamacpp:requests_processing",)),
        "waiting": _Source(names=("llamacpp:requests_deferred",)),
        "kv_used_ratio": _Source(names=("llamacpp:kv_cache_usage_ratio",), join="mean", optional=True),
        "prompt_tokens_total": _Source(names=("llamacpp:prompt_tokens_total",)),
        "cached_prompt_tokens_total": _Source(names=("llamacpp:prompt_tokens_cached_total",), optional=True),
        "output_tokens_total": _Source(names=("llamacpp:tokens_predicted_total",)),
        "prefill_seconds_total": _Source(names=("llamacpp:prompt_seconds_total",)),
        "decode_seconds_total": _Source(names=("llamacpp:tokens_predicted_seconds_total",)),
        "steps_total": _Source(names=("llamacpp:n_decode_total",)),
        "draft_tokens_total": _Source(names=("llamacpp:spec_decode_num_draft_tokens_total",), optional=True),
        "accepted_tokens_total": _Source(names=("llamacpp:spec_decode_num_accepted_tokens_total",), optional=True),
    },
    "vllm": {
        "running": _Source(names=("vllm:num_requests_running",)),
        "waiting": _Source(names=("vllm:num_requests_waiting",)),
        "kv_used_ratio": _Source(names=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), join="mean"),
        "prompt_tokens_total": _Source(names=("vllm:prompt_tokens_total",)),
        "cached_prompt_tokens_total": _Source(
            names=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), optional=True
        ),
        "output_tokens_total": _Source(names=("vllm:generation_tokens_total",)),
        "prefill_seconds_total": _Source(names=("vllm:request_prefill_time_seconds_sum",)),
        "decode_seconds_total": _Source(names=("vllm:request_decode_time_seconds_sum",)),
        "steps_total": _Source(names=("vllm:iteration_tokens_total_count",), optional=True),
        "preemptions_total": _Source(names=("vllm:num_preemptions_total",)),
        "draft_tokens_total": _Source(names=("vllm:spec_decode_num_draft_tokens_total",), optional=True),
        "accepted_tokens_total": _Source(names=("vllm:spec_decode_num_accepted_tokens_total",), optional=True),
    },
    "sglang": {
        "running": _Source(names=("sglang:num_running_reqs",)),
        "waiting": _Source(names=("sglang:num_queue_reqs",)),
        "kv_used_ratio": _Source(names=("sglang:token_usage",), join="mean"),
        "prompt_tokens_total": _Source(names=("sglang:prompt_tokens_total",)),
        "cached_prompt_tokens_total": _Source(names=("sglang:cached_tokens_total",), optional=True),
        "output_tokens_total": _Source(names=("sglang:generation_tokens_total",)),
        "preemptions_total": _Source(names=("sglang:num_retracted_requests_total",), optional=True),
    },
    "tgi": {
        "running": _Source(names=("tgi_batch_current_size",)),
        "waiting": _Source(names=("tgi_queue_size",)),
        "prompt_tokens_total": _Source(names=("tgi_request_input_length_sum",)),
        "output_tokens_total": _Source(names=("tgi_request_generated_tokens_sum",)),
        "steps_total": _Source(names=("tgi_batch_inference_count",), optional=True),
        "accepted_tokens_total": _Source(names=("tgi_request_skipped_tokens_sum",), optional=True),
    },
    # Up to 1.1 the names have no prefix and tell latencies alone; requests, tokens and the cache came with 1.2.
    "tensorrt-llm": {
        "running": _Source(names=("trtllm_num_requests_running",)),
        "waiting": _Source(names=("trtllm_num_requests_waiting",)),
        "kv_used_ratio": _Source(names=("trtllm_kv_cache_utilization",), join="mean"),
        "prompt_tokens_total": _Source(names=("trtllm_prompt_tokens_total",), optional=True),
        "cached_prompt_tokens_total": _Source(names=("trtllm_prompt_cached_tokens_total",), optional=True),
        "output_tokens_total": _Source(names=("trtllm_generation_tokens_total",), optional=True),
        "prefill_seconds_total": _Source(names=("trtllm_request_prefill_time_seconds_sum",), optional=True),
        "decode_seconds_total": _Source(names=("trtllm_request_decode_time_seconds_sum",), optional=True),
        "draft_tokens_total": _Source(
            names=("trtllm_spec_decode_drafted_tokens_total", "trtllm_spec_decode_num_draft_tokens_total"),
            optional=True,
        ),
        "accepted_tokens_total": _Source(
            names=("trtllm_spec_decode_accepted_tokens_total", "trtllm_spec_decode_num_accepted_tokens_total"),
            optional=True,
        ),
    },
    # Our own workers; what a backend does not know is not on its page.
    "powerband": {
        "running": _Source(names=("powerband_requests_running",)),
        "waiting": _Source(names=("powerband_requests_waiting",)),
        "kv_used_ratio": _Source(names=("powerband_kv_used_ratio",), join="mean", optional=True),
        "prompt_tokens_total": _Source(names=("powerband_prompt_tokens_total",)),
        "output_tokens_total": _Source(names=("powerband_output_tokens_total",)),
        "prefill_seconds_total": _Source(names=("powerband_prefill_seconds_total",), optional=True),
        "decode_seconds_total": _Source(names=("powerband_decode_seconds_total",), optional=True),
        "steps_total": _Source(names=("powerband_steps_total",), optional=True),
    },
}
# Triton's TensorRT-LLM backend tells the same under label sets of two families.
_TRITON: dict[str, _Source] = {
    "running": _Source(names=("nv_trt_llm_request_metrics",), labels={"request_type": "scheduled"}),
    "waiting": _Source(names=("nv_trt_llm_request_metrics",), labels={"request_type": "waiting"}),
    "kv_used_ratio": _Source(
        names=("nv_trt_llm_kv_cache_block_metrics",), labels={"kv_cache_block_type": "fraction"}, join="mean"
    ),
}
_PREFIXES: dict[str, Dialect] = {
    "llamacpp:": "llamacpp",
    "vllm:": "vllm",
    "sglang:": "sglang",
    "tgi_": "tgi",
    "trtllm_": "tensorrt-llm",
    "nv_trt_llm_": "tensorrt-llm",
    "powerband_": "powerband",
}
_JOIN: dict[str, Callable[[list[float]], float]] = {"sum": math.fsum, "mean": lambda each: math.fsum(each) / len(each)}
_FIELDS = tuple(name for name in EngineSample.__struct_fields__ if name != "t_ns")


def recognise(scrape: Scrape) -> Dialect | None:
    """Whose metrics these are, by the prefix that most series carry; None where no engine is known by them."""
    counts: dict[Dialect, int] = {}
    for name in scrape.series:
        for prefix, dialect in _PREFIXES.items():
            if name.startswith(prefix):
                counts[dialect] = counts.get(dialect, 0) + 1
    return max(counts.items(), key=lambda item: item[1])[0] if counts else None


def vllm_cache_config(page: str) -> dict[str, str]:
    """What vLLM tells of its cache as the labels of a metric; empty where the page has none."""
    series = parse_metrics(page).series.get("vllm:cache_config_info", ())
    return series[0].labels if series else {}


def to_sample(text: str, t_ns: int) -> EngineSample:
    """One /metrics page as an EngineSample; a value that is not there is Missing with the reason.

    ``prefill_seconds_total`` and ``decode_seconds_total`` are request-seconds: requests that overlap each count.
    """
    scrape = parse_metrics(text)
    dialect = recognise(scrape)
    if dialect is None:
        what = "is empty" if not scrape.series else "holds no metric of a known engine"
        return missing_sample(f"the /metrics page {what}", t_ns)
    sources = _MAPS[dialect]
    if dialect == "tensorrt-llm" and any(name.startswith("nv_trt_llm_") for name in scrape.series):
        sources = _TRITON
    values = {name: _value(scrape, dialect, sources.get(name)) for name in _FIELDS}
    return EngineSample(t_ns=t_ns, **values)


def missing_sample(reason: str, t_ns: int) -> EngineSample:
    """A sample in which everything is Missing for one reason."""
    return EngineSample(t_ns=t_ns, **{name: Missing(missing=reason) for name in _FIELDS})


def expected_names(dialect: Dialect) -> dict[str, tuple[str, ...]]:
    """The metric names that an engine must write, by field: one of each tuple has to be on its page."""
    return {field: source.names for field, source in _MAPS[dialect].items() if not source.optional}


def _value(scrape: Scrape, dialect: Dialect, source: _Source | None) -> Measured:
    if source is None:
        return Missing(missing=f"{dialect} does not expose it")
    for name in source.names:
        values = scrape.values(name, **source.labels)
        if not values:
            continue
        joined = _JOIN[source.join](values) if all(map(math.isfinite, values)) else math.nan
        return (
            joined if math.isfinite(joined) else Missing(missing=f"{dialect} wrote a value of {name} that is no number")
        )
    wanted = " or ".join(source.names)
    if source.optional:
        return Missing(missing=f"{dialect} does not write {wanted} in this version or with these settings")
    return Missing(missing=f"{wanted} is not on the /metrics page of {dialect}: was it renamed?")
