"""What a running vLLM says it does: the settings in its startup log and in its own metrics."""

import contextlib
import re

from powerband.engines.running import compare_settings
from powerband.probes.engine_metrics import vllm_cache_config
from powerband.probes.http import HttpError, read_page
from powerband.probes.startup.vllm import settings as named_settings
from powerband.records.config import Effective, EngineConfig, Value

_MOST_CHARS = 4 << 20  # of a log: the settings stand at its begin
# Fields of "Initializing a V1 LLM engine (v0.26.0) with config: ...", by the knob's own name.
_CONFIG = {
    "max_model_len": "max_seq_len",
    "dtype": "dtype",
    "load_format": "load_format",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
}
# What the parts of the engine print of themselves, newest release first.
_LINES: dict[str, str] = {
    "max_num_batched_tokens": r"[Cc]hunked prefill is enabled with max_num_batched_tokens=(\d+)",
    "async_scheduling": r"[Aa]synchronous scheduling is (enabled|disabled)",
    "attention_backend": r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend",
    "cudagraph_mode": r"'cudagraph_mode': <CUDAGraphMode\.(\w+)",
    "model_runner": r"Using (V\d) Model Runner",
    "num_gpu_blocks": r"# (?:GPU|cuda|CPU) blocks: (\d+)",
}
# Labels of vllm:cache_config_info that are settings.
_LABELS = {
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "num_gpu_blocks": "num_gpu_blocks",
    "enable_prefix_caching": "enable_prefix_caching",
    "cpu_offload_gb": "cpu_offload_gb",
}
_WORDS: dict[str, Value] = {"True": True, "False": False, "None": "none", "enabled": True, "disabled": False}


def settings_from_log(text: str) -> dict[str, Value]:
    """The settings that a startup log states, in the knobs' spelling; what was resolved replaces what was asked."""
    found = dict(named_settings(text))
    for name in ("model", "model_tag", "host", "port"):
        found.pop(name, None)
    config = re.search(r"Initializing a V\d LLM engine .*?with config: (.*)", text)
    if config:
        for knob, field in _CONFIG.items():
            match = re.search(rf"\b{field}=([^,\s]+)[,\s]", config[1])
            if match:
                found[knob] = _value(match[1].removeprefix("torch."))
    for knob, pattern in _LINES.items():
        matches = re.findall(pattern, text)
        if matches:
            found[knob] = _value(matches[-1])
    return found


def settings_from_metrics(text: str) -> dict[str, Value]:
    """The cache's settings, as it labels them."""
    labels = vllm_cache_config(text)
    return {knob: _value(labels[label]) for label, knob in _LABELS.items() if labels.get(label) not in (None, "None")}


def read_effective(url: str, log: str, config: EngineConfig) -> Effective:
    """Both together, beside what was asked."""
    runs = settings_from_log(log[:_MOST_CHARS])
    with contextlib.suppress(HttpError):  # then the log alone
        runs |= settings_from_metrics(read_page(url + "/metrics", timeout_s=10).text)
    asked = config.knobs
    return compare_settings(asked, _alike(runs, asked), "startup log and /metrics vllm:cache_config_info")


def _alike(runs: dict[str, Value], asked: dict[str, Value]) -> dict[str, Value]:
    """fp8 is vLLM's other name for fp8_e4m3, and a share printed as text is a number."""
    if asked.get("kv_cache_dtype") == "fp8" and runs.get("kv_cache_dtype") == "fp8_e4m3":
        return runs | {"kv_cache_dtype": "fp8"}
    return runs


def _value(word: str) -> Value:
    word = word.strip("'\"")
    if word in _WORDS:
        return _WORDS[word]
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    return float(word) if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", word) else word
