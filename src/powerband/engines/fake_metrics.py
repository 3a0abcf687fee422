"""The fake server's /metrics, in the names and label forms of llama.cpp or vLLM."""

from powerband.engines.fake_options import Options
from powerband.engines.fake_schedule import Counters


def metrics_text(options: Options, counters: Counters) -> str:
    """Prometheus text, format 0.0.4."""
    return (_vllm if options.dialect == "vllm" else _llamacpp)(options, counters)


def _llamacpp(options: Options, c: Counters) -> str:
    rows: list[tuple[str, str, float]] = [
        ("prompt_tokens_total", "counter", c.prompt_tokens),
        ("prompt_tokens_cached_total", "counter", 0),
        ("prompt_seconds_total", "counter", c.prefill_s),
        ("tokens_predicted_total", "counter", c.finished_tokens),
        ("tokens_predicted_seconds_total", "counter", c.decode_s),
        ("n_decode_total", "counter", c.steps),
        ("n_tokens_max", "counter", c.longest_tokens),
        ("prompt_tokens_seconds", "gauge", c.prompt_tokens / c.prefill_s if c.prefill_s else 0),
        ("predicted_tokens_seconds", "gauge", c.finished_tokens / c.decode_s if c.decode_s else 0),
        ("requests_processing", "gauge", c.running),
        ("requests_deferred", "gauge", c.waiting),
        ("n_busy_slots_per_decode", "gauge", c.busy_slots / c.steps if c.steps else 0),
    ]
    return "".join(
        f"# HELP llamacpp:{name} see llama.cpp\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
        for name, kind, value in rows
    )


def _vllm(options: Options, c: Counters) -> str:
    labels = f'engine="0",model_name="{options.model}"'
    usage = c.kv_used_tokens / options.kv_tokens if options.kv_tokens else 0.0
    rows: list[tuple[str, str, float]] = [
        ("num_requests_running", "gauge", c.running),
        ("num_requests_waiting", "gauge", c.waiting),
        ("kv_cache_usage_perc", "gauge", usage),
        ("prefix_cache_queries", "counter", c.prompt_tokens),
        ("prefix_cache_hits", "counter", 0),
        ("num_preemptions", "counter", c.preemptions),
        ("prompt_tokens", "counter", c.prompt_tokens),
        ("generation_tokens", "counter", c.output_tokens),
    ]
    text = ""
    for name, kind, value in rows:
        sample = f"vllm:{name}_total" if kind == "counter" else f"vllm:{name}"
        text += f"# HELP {sample} see vLLM\n# TYPE {sample} {kind}\n{sample}{{{labels}}} {float(value)}\n"
    for name, count, total in (
        ("iteration_tokens_total", c.steps, c.prompt_tokens + c.output_tokens),
        ("request_prefill_time_seconds", c.finished, c.finished_prefill_s),
        ("request_decode_time_seconds", c.finished, c.decode_s),
    ):
        text += f"# HELP vllm:{name} see vLLM\n# TYPE vllm:{name} histogram\n"
        text += f'vllm:{name}_bucket{{{labels},le="+Inf"}} {float(count)}\n'
        text += f"vllm:{name}_count{{{labels}}} {float(count)}\nvllm:{name}_sum{{{labels}}} {float(total)}\n"
    return text
