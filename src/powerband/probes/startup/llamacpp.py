"""llama.cpp's startup log: one buffer a line, by backend."""

from powerband.probes.startup.scan import SIZE, last, sizes, words
from powerband.records.config import Value
from powerband.records.memory import EngineReport

MARKS = ("llama_context:", "llama_new_context_with_model:", "llama_kv_cache", "load_tensors:", "llama_model_loader:")


def version(text: str) -> str:
    build = words(r"build(?:_info)?: (b?\d[\w.-]*)", text)
    return build.removeprefix("b")


def read(text: str) -> EngineReport:
    """Sums over backends. A server may load twice, once to see whether it fits: the last load counts."""
    start = text.rfind("load_tensors: loading model tensors")
    if start < 0:
        start = text.rfind("llm_load_tensors:")
    loaded = text[max(start, 0) :]
    cells = last(r"llama_context: n_ctx\s+= (\d+)", text) or last(r"n_ctx\s+= (\d+)", text)
    return EngineReport(
        weights_bytes=_sum(rf"(?m)^.*model buffer size =\s+{SIZE}", loaded, once=True),
        activation_bytes=_sum(rf"(?m)^.*(?:compute|output) buffer size\s+=\s+{SIZE}", loaded),
        kv_cache_bytes=_sum(rf"(?m)^.*(?:KV|RS) buffer size =\s+{SIZE}", loaded),
        kv_tokens=cells,
        max_concurrency=last(r"n_seq_max\s+= (\d+)", text),
    )


def _sum(pattern: str, text: str, *, once: bool = False) -> float | None:
    found = sizes(pattern, text)
    if once:  # newer builds print each buffer twice, at two levels
        found = list(dict.fromkeys(found))
    return sum(found) if found else None


def settings(text: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for knob, pattern in (
        ("n_ctx", r"(?:llama_context|llama_new_context_with_model): n_ctx\s+= (\d+)"),
        ("n_parallel", r"n_seq_max\s+= (\d+)"),
        ("n_batch", r"n_batch\s+= (\d+)"),
        ("n_ubatch", r"n_ubatch\s+= (\d+)"),
    ):
        value = last(pattern, text)
        if value is not None:
            found[knob] = int(value)
    for knob, letter in (("cache_type_k", "K"), ("cache_type_v", "V")):
        word = words(rf"{letter} \((\w+)\):", text)
        if word:
            found[knob] = word
    return found
