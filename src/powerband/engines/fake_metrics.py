"""The fake server's metrics page, in the names and label forms of the engine that it speaks for."""

from powerband.engines.fake_options import Options
from powerband.engines.fake_schedule import Counters


def metrics_text(options: Options, counters: Counters) -> str:
    """Prometheus text, format 0.0.4."""
    writers = {"vllm": _vllm, "sglang": _sglang, "tgi": _tgi, "tensorrt-llm": _tensorrt_llm}
    return writers.get(options.dialect, _llamacpp)(options, counters)


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


def _usage(options: Options, c: Counters) -> float:
    return c.kv_used_tokens / options.kv_tokens if options.kv_tokens else 0.0


def _lines(rows: list[tuple[str, str, float]], labels: str) -> str:
    """One sample each; a name of a histogram gives its sum, count and last bucket, as (name, kind, sum)."""
    text = ""
    for name, kind, value in rows:
        text += f"# HELP {name} see the engine\n# TYPE {name} {kind}\n"
        if kind == "histogram":
            bucket = f'{labels},le="+Inf"'.lstrip(",")
            text += f"{name}_bucket{{{bucket}}} {value}\n{name}_count{{{labels}}} {value}\n"
            name += "_sum"
        text += f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
    return text.replace("{}", "")


def _sglang(options: Options, c: Counters) -> str:
    rows: list[tuple[str, str, float]] = [
        ("sglang:num_running_reqs", "gauge", c.running),
        ("sglang:num_queue_reqs", "gauge", c.waiting),
        ("sglang:num_used_tokens", "gauge", c.kv_used_tokens),
        ("sglang:token_usage", "gauge", _usage(options, c)),
        ("sglang:prompt_tokens_total", "counter", c.prompt_tokens),
        ("sglang:generation_tokens_total", "counter", c.output_tokens),
        ("sglang:cached_tokens_total", "counter", 0),
        ("sglang:num_requests_total", "counter", c.finished),
    ]
    return _lines(rows, f'model_name="{options.model}",tp_rank="0"')


def _tgi(options: Options, c: Counters) -> str:
    """TGI adds a request to its histograms when it has ended."""
    rows: list[tuple[str, str, float]] = [
        ("tgi_batch_current_size", "gauge", c.running),
        ("tgi_queue_size", "gauge", c.waiting),
        ("tgi_request_count", "counter", c.finished),
        ("tgi_request_success", "counter", c.finished),
        ("tgi_request_input_length", "histogram", c.prompt_tokens),
        ("tgi_request_generated_tokens", "histogram", c.finished_tokens),
    ]
    return _lines(rows, "") + _lines([("tgi_batch_inference_count", "counter", c.steps)], 'method="decode"')


def _tensorrt_llm(options: Options, c: Counters) -> str:
    rows: list[tuple[str, str, float]] = [
        ("trtllm_num_requests_running", "gauge", c.running),
        ("trtllm_num_requests_waiting", "gauge", c.waiting),
        ("trtllm_kv_cache_utilization", "gauge", _usage(options, c)),
        ("trtllm_request_success_total", "counter", c.finished),
        ("trtllm_prompt_tokens_total", "counter", c.prompt_tokens),
        ("trtllm_generation_tokens_total", "counter", c.finished_tokens),
        ("trtllm_request_prefill_time_seconds", "histogram", c.finished_prefill_s),
        ("trtllm_request_decode_time_seconds", "histogram", c.decode_s),
    ]
    return _lines(rows, 'model_name="undefined",engine_type="undefined"')


def _vllm(options: Options, c: Counters) -> str:
    labels = f'engine="0",model_name="{options.model}"'
    rows: list[tuple[str, str, float]] = [
        ("num_requests_running", "gauge", c.running),
        ("num_requests_waiting", "gauge", c.waiting),
        ("kv_cache_usage_perc", "gauge", _usage(options, c)),
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
