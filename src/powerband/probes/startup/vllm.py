"""vLLM's startup log: V0, V1, and the V2 model runner."""

import ast
import contextlib
import re

from powerband.probes.startup.scan import (
    NUMBER,
    SIZE,
    first,
    first_size,
    largest_size,
    last,
    words,
)
from powerband.records.config import Value
from powerband.records.memory import EngineReport

MARKS = (
    "vLLM API server version",
    "vLLM engine",
    "LLM engine (v",
    "Model loading took",
    "# GPU blocks:",
    "GPU KV cache size",
    "CPU KV cache size",
)
_VERSION = (r"LLM engine \(v([\w.]+)", r"vLLM API server version ([\w.]+)", r"vLLM version ([\w.]+)")


def version(text: str) -> str:
    return next((found for pattern in _VERSION if (found := words(pattern, text))), "")


def read(text: str) -> EngineReport:
    """Figures of rank 0, or of the fullest rank where every rank prints."""
    weights = largest_size(rf"(?:Loading model weights took|Model loading took) {SIZE}", text)
    blocks = last(r"# (?:GPU|cuda) blocks: (\d+)", text)
    tokens = last(r"(?:GPU|CPU|XPU) KV cache size: ([\d,]+) tokens", text)
    if tokens is None and blocks is not None:
        tokens = blocks * (last(r"block_size=(\d+)", text) or 16)
    total = first_size(rf"total_gpu_memory \({SIZE}\)", text) or first_size(rf"total_gpu_memory={SIZE}", text)
    total = total or first_size(rf"Free memory on device [^(]*\([\d.]+/{SIZE}\)", text)
    return EngineReport(
        weights_bytes=first_size(rf"Actual usage is {SIZE} for weight", text) if weights is None else weights,
        activation_bytes=first_size(rf"activation peak memory takes {SIZE}", text)
        or first_size(rf"for weight, {SIZE} for peak activation", text),
        non_torch_bytes=_first_of(
            text, rf"non_torch_memory takes {SIZE}", rf"{SIZE} for non-torch memory", rf"non_torch_memory={SIZE}"
        ),
        cuda_graphs_bytes=largest_size(rf"Graph capturing finished in \d+ secs?, took {SIZE}", text),
        kv_cache_bytes=_first_of(
            text,
            rf"reserved for KV Cache is {SIZE}",
            rf"Available KV cache memory: {SIZE}",
            rf"available KV cache memory \({SIZE}\)",
            rf"kv_cache_size={SIZE}",
            r"Explicitly set \(([\d.]+)/[\d.]+\) (GiB) for KV cache",  # the CPU build, VLLM_CPU_KVCACHE_SPACE
        ),
        kv_tokens=tokens,
        max_concurrency=last(rf"Maximum concurrency for [\d,]+ tokens per request: {NUMBER}x", text),
        max_model_len=last(r"Maximum concurrency for ([\d,]+) tokens per request", text),
        total_bytes=total,
        budget_bytes=first_size(rf"gpu_memory_utilization \([\d.]+\) = {SIZE}", text)
        or first_size(rf"Desired GPU memory utilization is \([\d.]+, {SIZE}\)", text),
    )


def _first_of(text: str, *patterns: str) -> float | None:
    return next((size for pattern in patterns if (size := first_size(pattern, text)) is not None), None)


def _plain_values(args: str) -> dict[str, Value]:
    """The numbers, words and flags of a printed dictionary, whatever objects stand between them."""
    found: dict[str, Value] = {}
    for name, word in re.findall(r"[{ ]'(\w+)': ('[^']*'|\"[^\"]*\"|True|False|-?\d[\d.e+-]*)(?=[,}])", args):
        with contextlib.suppress(ValueError, SyntaxError):
            found[name] = ast.literal_eval(word)
    return found


def settings(text: str) -> dict[str, Value]:
    """Knobs that the log names, in the engine's spelling."""
    found: dict[str, Value] = {}
    match = re.search(r"non-default args: (\{.*?\})\s*$", text, re.MULTILINE)
    if match:
        found.update(_plain_values(match[1]))
    share = first(rf"gpu_memory_utilization \({NUMBER}\)", text) or first(
        rf"Desired GPU memory utilization is \({NUMBER},", text
    )
    tokens = last(r"max_num_batched_tokens=(\d+)", text)
    for name, value in (("gpu_memory_utilization", share), ("max_num_batched_tokens", tokens)):
        if value is not None and name not in found:
            found[name] = int(value) if name.startswith("max") else value
    length = last(r"Maximum concurrency for ([\d,]+) tokens per request", text)
    if length is not None:
        found.setdefault("max_model_len", int(length))
    return found
