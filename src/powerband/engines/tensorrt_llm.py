"""TensorRT-LLM's server, 0.20 to 1.2: ``trtllm-serve`` with the PyTorch backend, flags and a config file.

What has no flag in these releases goes into the file that ``--extra_llm_api_options`` names (JSON, which YAML reads).
There, ``kv_cache_config`` replaces the flag's whole group, so that the share of memory is said again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from powerband.engines.commanded import Commanded, Description, Program
from powerband.engines.running import compare_settings, served_model
from powerband.engines.server import logged_settings
from powerband.probes.http import read_json
from powerband.records.config import Effective, EngineConfig, Knob, Value

KV_DTYPES = ("auto", "fp8", "nvfp4")
BACKENDS = ("auto", "TRTLLM", "FLASHINFER", "VANILLA")
POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION")
SHARE_KNOB = "kv_cache_free_gpu_memory_fraction"
NGRAM = "ngram"
CONFIG_FILE = "trtllm.yaml"
# Knob -> its place in the config file.
_PLACES = {
    "kv_cache_dtype": ("kv_cache_config", "dtype"),
    "enable_block_reuse": ("kv_cache_config", "enable_block_reuse"),
    "tokens_per_block": ("kv_cache_config", "tokens_per_block"),
    "capacity_scheduler_policy": ("scheduler_config", "capacity_scheduler_policy"),
    "attn_backend": ("attn_backend",),
    "disable_overlap_scheduler": ("disable_overlap_scheduler",),
    "enable_attention_dp": ("enable_attention_dp",),
    "stream_interval": ("stream_interval",),
    "load_format": ("load_format",),
}
WRITTEN = (*_PLACES, "cuda_graphs", "speculative")


def trtllm_knobs() -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is trtllm-serve's default."""
    return (*_batching(), *_cache(), *_execution(), *_parallel())


def _batching() -> tuple[Knob, ...]:
    return (
        Knob(
            name="max_batch_size", kind="int", low=1, high=16384, naive=2048, grid=(64, 128, 256, 512, 1024, 2048),
            help="requests in one step", addresses=("no_batching", "queueing", "kv_pressure"),
        ),
        Knob(
            name="max_num_tokens", kind="int", low=1, high=1 << 20, naive=8192, grid=(2048, 4096, 8192, 16384),
            help="tokens in one step", addresses=("head_of_line_blocking", "compute_bound"),
        ),
        Knob(
            name="enable_chunked_prefill", kind="bool", naive=False, grid=(False, True),
            help="cut long prompts into parts that share a step with decoding", addresses=("head_of_line_blocking",),
        ),
        Knob(
            name="capacity_scheduler_policy", kind="choice", choices=POLICIES, naive="GUARANTEED_NO_EVICT",
            grid=POLICIES, help="admit only what will surely fit, or as much as fits now and pause some",
            addresses=("kv_pressure", "queueing"),
        ),
        Knob(
            name="num_postprocess_workers", kind="int", low=0, high=64, naive=0, grid=(0, 2, 4),
            help="processes that detokenise and write answers", addresses=("detokenize_bound", "scheduler_bound"),
        ),
        Knob(
            name="stream_interval", kind="int", low=1, high=64, naive=1, grid=(1, 4),
            help="steps between two writes of a stream", addresses=("detokenize_bound",),
        ),
    )  # fmt: skip


def _cache() -> tuple[Knob, ...]:
    return (
        Knob(
            name=SHARE_KNOB, kind="float", low=0.01, high=1.0, naive=0.9, grid=(0.8, 0.9, 0.95),
            help="share of the memory left after loading that the cache takes", addresses=("kv_pressure",),
        ),
        Knob(
            name="max_seq_len", kind="int", low=0, naive=0, help="longest sequence; 0: the model's context",
            addresses=("kv_pressure",),
        ),
        Knob(
            name="kv_cache_dtype", kind="choice", choices=KV_DTYPES, naive="auto", grid=("auto", "fp8"),
            help="how cached values are stored", addresses=("kv_pressure", "memory_bandwidth_bound"), numerics=True,
        ),
        Knob(
            name="enable_block_reuse", kind="bool", naive=True, grid=(True, False),
            help="reuse the cache of equal prompt beginnings", addresses=("prefix_cache_miss",),
        ),
        Knob(
            name="tokens_per_block", kind="int", low=8, high=128, naive=32, help="tokens in one cache block",
        ),
    )  # fmt: skip


def _execution() -> tuple[Knob, ...]:
    return (
        Knob(
            name="attn_backend", kind="choice", choices=BACKENDS, naive="auto", grid=("auto", "FLASHINFER"),
            help="attention kernels", addresses=("kernel_choice", "memory_bandwidth_bound"),
        ),
        Knob(
            name="cuda_graphs", kind="choice", choices=("auto", "padded", "off"), naive="auto", grid=("auto", "padded"),
            help="captured decode steps: at the engine's batch sizes, batches padded up to them, or none",
            addresses=("launch_bound",),
        ),
        Knob(
            name="disable_overlap_scheduler", kind="bool", naive=False,
            help="schedule a step only when the last has ended", addresses=("scheduler_bound",),
        ),
        Knob(
            name="speculative", kind="choice", choices=("none", NGRAM), naive="none", grid=("none", NGRAM),
            help="speculation from n-grams of the text so far, without a draft model",
            addresses=("memory_bandwidth_bound", "launch_bound"),
        ),
        Knob(
            name="load_format", kind="choice", choices=("auto", "dummy"), naive="auto",
            help="dummy: random weights, where only speed is measured",
        ),
        Knob(name="trust_remote_code", kind="bool", naive=False, help="run code that the checkpoint brings"),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip


def _parallel() -> tuple[Knob, ...]:
    return (
        Knob(
            name="tp_size", kind="int", low=1, high=64, naive=1, grid=(1, 2, 4, 8),
            help="cards that share each layer", addresses=("communication_bound", "memory_bandwidth_bound"),
        ),
        Knob(
            name="pp_size", kind="int", low=1, high=64, naive=1, help="cards that share the layers between them",
            addresses=("communication_bound",),
        ),
        Knob(
            name="ep_size", kind="int", low=0, high=64, naive=0, help="cards that share the experts; 0: as tensor",
            addresses=("communication_bound",),
        ),
        Knob(
            name="enable_attention_dp", kind="bool", naive=False, grid=(False, True),
            help="each card attends for its own requests; the rest of the layer is shared",
            addresses=("communication_bound", "kv_pressure"),
        ),
        Knob(name="CUDA_VISIBLE_DEVICES", kind="text", naive="", help="the cards to use"),
    )  # fmt: skip


def file_of(knobs: Mapping[str, Value]) -> dict[str, Any]:
    """The config file: metrics on, and the knobs that have no flag."""
    found: dict[str, Any] = {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    for name, place in _PLACES.items():
        if name in knobs:
            *groups, last = place
            group = found.setdefault(groups[0], {}) if groups else found
            group[last] = knobs[name]
    if "kv_cache_config" in found and SHARE_KNOB in knobs:
        found["kv_cache_config"]["free_gpu_memory_fraction"] = knobs[SHARE_KNOB]
    graphs = knobs.get("cuda_graphs", "auto")
    if graphs != "auto":
        found["cuda_graph_config"] = {"enable_padding": True} if graphs == "padded" else None
    if knobs.get("speculative") == NGRAM:
        found["speculative_config"] = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 4}
    return found


def write_file(knobs: Mapping[str, Value], folder: Path) -> list[str]:
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(file_of(knobs), indent=2) + "\n", encoding="utf-8")
    return ["--extra_llm_api_options", str(path)]


def refuse(config: EngineConfig, longest_tokens: int) -> str | None:
    """The rule of TensorRT-LLM that this config breaks, in words, or None."""
    knobs = config.knobs
    tokens, batch = int(knobs.get("max_num_tokens", 8192)), int(knobs.get("max_batch_size", 2048))
    chunked = knobs.get("enable_chunked_prefill", False) is True
    if not chunked and 0 < tokens < longest_tokens:
        return f"max_num_tokens={tokens} may not hold a prompt of a request of {longest_tokens}: chunk prefills"
    if "max_num_tokens" in knobs and "max_batch_size" in knobs and batch > tokens:
        return f"max_batch_size={batch} is larger than max_num_tokens={tokens}"
    if knobs.get("speculative") == NGRAM and knobs.get("disable_overlap_scheduler", False) is not True:
        return "speculation from n-grams runs without the overlap scheduler: set disable_overlap_scheduler=true"
    block = int(knobs.get("tokens_per_block", 32))
    if block & (block - 1):
        return f"tokens_per_block={block} is no power of two"
    return None


def read_effective(url: str, log: str, config: EngineConfig) -> Effective:
    """What the startup log says."""
    return compare_settings(config.knobs, logged_settings(log), "startup log")


def identify(url: str) -> tuple[str, str]:
    """The model is called by its folder's name."""
    version = read_json(url + "/version", timeout_s=30).get("version", "unknown")
    return served_model(url), f"TensorRT-LLM {version}"


def TensorRtLlm() -> Commanded:
    """Its Prometheus page is /prometheus/metrics (/metrics holds JSON), mounted where return_perf_metrics is set."""
    return Commanded(
        Description(
            name="tensorrt-llm",
            title="TensorRT-LLM",
            program=Program(
                script=("trtllm-serve",),
                variable="POWERBAND_TRTLLM",
                package="tensorrt_llm",
                module=("tensorrt_llm.commands.serve",),
                get="pip install tensorrt-llm",
            ),
            knobs=trtllm_knobs,
            model_flag="",
            host_flag="--host",
            naive={"max_batch_size": 2048, "max_num_tokens": 8192},
            refuse=refuse,
            separator="_",
            written=WRITTEN,
            write=write_file,
            share_knob=SHARE_KNOB,
            longest_knob="max_seq_len",
            extra_body={"ignore_eos": True},
            metrics_path="/prometheus/metrics",
            identify=identify,
            read_effective=read_effective,
        )
    )
