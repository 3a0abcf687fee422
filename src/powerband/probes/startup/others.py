"""Startup logs of SGLang, TGI and TensorRT-LLM."""

import re

from powerband.probes.startup.scan import NUMBER, SIZE, first, first_size, largest_size, last, sizes, words
from powerband.records.config import Value
from powerband.records.memory import EngineReport

SGLANG_MARKS = ("KV Cache is allocated", "max_total_num_tokens=", "Load weight end", "server_args=ServerArgs")
TGI_MARKS = ("text_generation_router", "text_generation_launcher", "Setting max batch total tokens")
TRTLLM_MARKS = ("[TensorRT-LLM]", "[TRT-LLM]", "max tokens in paged KV cache")


def sglang_version(text: str) -> str:
    return words(r"sglang(?:\[[\w,]+\])?[ =]+v?(\d[\w.]*)", text)


def read_sglang(text: str) -> EngineReport:
    """SGLang prints GB and means GiB; ``mem usage`` stands in lines since 0.4, else two free figures are subtracted."""
    weights = largest_size(rf"Load weight end\..*?mem usage={SIZE}", text)
    before = first_size(rf"Load weight begin\. avail mem={SIZE}", text)
    after = first_size(rf"Load weight end\..*?avail mem={SIZE}", text)
    if weights is None and before is not None and after is not None:
        weights = before - after
    pool = re.search(rf"K size: {SIZE}, V size: {SIZE}", text)
    cache = sum(sizes(rf"[KV] size: {SIZE}", pool[0])) if pool else first_size(rf"KV size: {SIZE}", text)
    return EngineReport(
        weights_bytes=weights,
        cuda_graphs_bytes=_captures(text),
        kv_cache_bytes=cache,
        kv_tokens=last(r"max_total_num_tokens=(\d+)", text) or last(r"#tokens: (\d+)", text),
        max_model_len=last(r"context_len=(\d+)", text),
        total_bytes=None,
    )


def _captures(text: str) -> float | None:
    """Graphs of prefill, decode and draft steps are captured one after the other; of each, the fullest rank counts."""
    largest: dict[str, float] = {}
    for name in set(re.findall(r"Capture ([\w ]*)graph end\.", text)):
        size = largest_size(rf"Capture {name}graph end\..*?mem usage={SIZE}", text)
        if size is not None:
            largest[name] = size
    return sum(largest.values()) if largest else None


def sglang_settings(text: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for knob, pattern in (
        ("mem_fraction_static", rf"mem_fraction_static={NUMBER}"),
        ("chunked_prefill_size", r"chunked_prefill_size=(\d+)"),
        ("max_running_requests", r"max_running_requests=(\d+)"),
        ("tp_size", r"tp_size=(\d+)"),
        ("context_length", r"context_len=(\d+)"),
    ):
        value = last(pattern, text)
        if value is not None:
            found[knob] = value if "fraction" in knob else int(value)
    return found


def tgi_version(text: str) -> str:
    return words(r"text-generation-(?:inference|launcher|router)[^\d\n]{0,20}(\d+\.\d+[\w.]*)", text)


def read_tgi(text: str) -> EngineReport:
    """TGI names tokens rather than bytes: the batch total, or cache blocks of one token."""
    blocks = re.search(r"KV-cache blocks: (\d+), size: (\d+)", text)
    tokens = last(r"[Ss]etting max batch total tokens to ([\d,]+)", text)
    if tokens is None and blocks:
        tokens = float(blocks[1]) * float(blocks[2])
    return EngineReport(kv_tokens=tokens, max_model_len=last(r"[Mm]aximum total tokens defaulted to (\d+)", text))


def tgi_settings(text: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for knob, pattern in (
        ("max_concurrent_requests", r"max_concurrent_requests: (\d+)"),
        ("validation_workers", r"validation_workers: (\d+)"),
        ("max_waiting_tokens", r"max_waiting_tokens: (\d+)"),
        ("max_total_tokens", r"max_total_tokens: Some\(\s*(\d+)"),
        ("max_batch_prefill_tokens", r"max_batch_prefill_tokens: Some\(\s*(\d+)"),
        ("num_shard", r"num_shard: Some\(\s*(\d+)"),
    ):
        value = first(pattern, text)
        if value is not None:
            found[knob] = int(value)
    return found


def trtllm_version(text: str) -> str:
    return words(r"TensorRT-LLM version:? (\d[\w.]*)", text)


def read_trtllm(text: str) -> EngineReport:
    """Engine, execution context and the paged cache, each on its own line; the PyTorch backend (1.x) tells its
    profiling run instead. The cache is allocated twice there, small for that run: the last counts.
    """
    if "in memory usage profiling" in text:
        return _read_profiled(text)
    tokens = last(r"for max tokens in paged KV cache \((\d+)\)", text)
    blocks, each = last(r"blocks in KV cache primary pool: (\d+)", text), last(r"tokens per block: (\d+)", text)
    if tokens is None and blocks is not None and each is not None:
        tokens = blocks * each
    return EngineReport(
        weights_bytes=largest_size(rf"Loaded engine size: {SIZE}", text),
        activation_bytes=largest_size(rf"Allocated {SIZE} for execution context memory", text),
        kv_cache_bytes=largest_size(rf"Allocated {SIZE} for max tokens in paged KV cache", text),
        kv_tokens=tokens,
        total_bytes=first_size(rf"paged kv cache: total: {SIZE}", text),
    )


def _read_profiled(text: str) -> EngineReport:
    """Memory outside PyTorch holds the context, NCCL and captured graphs together: none of them is told alone."""
    profiled = rf"in memory usage profiling: {SIZE}"
    pools = sizes(rf"Allocated {SIZE} for max tokens in paged KV cache", text)
    return EngineReport(
        weights_bytes=largest_size(rf"after loading model weights \(inside torch\) {profiled}", text),
        activation_bytes=largest_size(rf"dynamically allocated during inference \(inside torch\) {profiled}", text),
        non_torch_bytes=largest_size(rf"Memory used outside torch \([^)]*\) {profiled}", text),
        kv_cache_bytes=pools[-1] if pools else first_size(rf"Estimated max memory in KV cache\s*: {SIZE}", text),
        kv_tokens=last(r"for max tokens in paged KV cache \((\d+)\)", text),
        max_model_len=last(r"max_seq_len=(\d+), max_num_requests=", text),
        total_bytes=first_size(rf"device total memory {SIZE}", text),
    )


def trtllm_settings(text: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for knob, pattern in (
        ("tokens_per_block", r"tokens per block: (\d+)"),
        ("max_num_tokens", r"max_num_requests=\d+, max_num_tokens=(\d+)"),
        ("max_batch_size", r"max_num_tokens=\d+, max_batch_size=(\d+)"),
        ("max_seq_len", r"max_seq_len=(\d+), max_num_requests="),
    ):
        value = last(pattern, text)
        if value is not None:
            found[knob] = int(value)
    return found
