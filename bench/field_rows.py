"""Rows of the field data as something to simulate: the bursts of gpustack's lab, and settings that scripts state."""

import random
import re
from typing import Any, NamedTuple

from powerband.records.workload import RequestSpec, Workload

# Lengths of a ShareGPT sample are given as means only; they vary about as a lognormal of this width, and vLLM's loader
# keeps prompts up to 1024 tokens (vllm/benchmarks/datasets.py).
SHAREGPT_SIGMA, SHAREGPT_LONGEST = 1.0, 1024
_CARD = re.compile(r"(?:(\d+) × |A single )?NVIDIA (H100|H200|A100)")
# Flags that change nothing a step is made of, or only what the simulator has a value for.
_HARMLESS = {
    "--host": 1, "--port": 1, "--max-model-len": 1, "--async-scheduling": 0, "--trust-remote-code": 0,
    "--reasoning-parser": 1, "--tokenizer-mode": 1, "--tool-call-parser": 1, "--enable-auto-tool-choice": 0,
    "--chat-template": 1, "--gpu-memory-utilization": 1, "--cuda-graph-max-bs": 1,
}  # fmt: skip
_READ = {
    "-tp": "tp", "--tensor-parallel-size": "tp", "--tp-size": "tp", "--tp": "tp", "--ep-size": "ep",
    "--max-num-seqs": "slots", "--max-running-requests": "slots", "--max-num-batched-tokens": "batch",
    "--chunked-prefill-size": "batch",
}  # fmt: skip


# "Other Benchmark Cases" of a page were run with its baseline command (or with one that differs only in what is not
# modelled), not with the script that stands last before them, which is what the rows name. By page, as it says.
_OTHERS = "Other Benchmark Cases"
_BASELINE = {
    "gpt-oss-20b/a100.md": "vllm serve openai/gpt-oss-20b",
    "gpt-oss-120b/a100.md": "vllm serve openai/gpt-oss-120b --max-model-len 32768",
}


class Unread(Exception):
    """Why a row cannot be read."""


class Served(NamedTuple):
    """What a launch script states."""

    engine: str
    model: str
    tp: int = 1
    slots: int | None = None  # None: as the engine chooses
    batch: int | None = None


def card_of(text: str) -> tuple[str, int]:
    """Catalogue name and number of cards."""
    found = _CARD.search(text)
    if found is None:
        raise Unread(f"hardware {text.strip()[:40]}")
    return found[2].lower(), int(found[1] or 1)


def script_of(row: dict[str, Any]) -> str:
    """The command that a row was run with: its script, with what its comment changes."""
    if row["section"] == _OTHERS:
        page = "/".join(row["source"].split("#")[0].split("/")[-2:])
        if page not in _BASELINE:
            raise Unread("its script belongs to another section of the page")
        return _BASELINE[page]
    comment = row["variant_comment"] or ""
    return row["serving_script"] + (f" {comment}" if comment.startswith("--") else "")


def read_script(script: str) -> Served:
    """vLLM's and SGLang's launch scripts; a flag that changes the steps in a way not modelled makes the row unread.

    Of a flag that is given twice the last counts.
    """
    words = [word for word in script.replace("\\", " ").split() if word]
    if words[:2] == ["vllm", "serve"]:
        engine, model, rest = "vllm", words[2], words[3:]
    elif "sglang.launch_server" in words:
        engine, model, rest = "sglang", "", words[words.index("sglang.launch_server") + 1 :]
    else:
        raise Unread("an engine or script that is not read")
    values: dict[str, int] = {}
    place = 0
    while place < len(rest):
        flag, _, joined = rest[place].partition("=")
        if flag in ("--model-path", "--model"):
            model, place = joined or rest[place + 1], place + (1 if joined else 2)
        elif flag in _READ:
            value = joined or rest[place + 1]
            values[_READ[flag]] = int(value)
            place += 1 if joined else 2
        elif flag in _HARMLESS:
            place += 1 + (0 if joined else _HARMLESS[flag])
        else:
            raise Unread(f"setting not modelled: {flag[:30]}")
    values.pop("ep", None)
    if not model:
        raise Unread("no model in the script")
    return Served(engine=engine, model=model, **values)


def burst(row: dict[str, Any]) -> Workload:
    """The requests of a gpustack row: all at once, or as many in flight as it says."""
    prompt, answer = float(row["avg_input_tokens"]), float(row["avg_output_tokens"])
    count = int(row["metrics"]["Successful requests"])
    concurrency = row["metrics"].get("Maximum request concurrency")
    equal = "random" in (row["variant_comment"] or "")
    draw = random.Random(0)
    prompts = _lengths(draw, prompt, count, SHAREGPT_LONGEST, equal=equal)
    answers = _lengths(draw, answer, count, SHAREGPT_LONGEST, equal=equal)
    requests = tuple(
        RequestSpec(offset_ns=0, input_tokens=a, output_tokens=b) for a, b in zip(prompts, answers, strict=True)
    )
    return Workload(requests=requests, source="burst", concurrency=int(concurrency) if concurrency else None)


def _lengths(draw: random.Random, mean: float, count: int, longest: int, *, equal: bool) -> list[int]:
    if equal or mean >= longest:
        return [max(1, round(mean))] * count
    drawn = [min(draw.lognormvariate(0.0, SHAREGPT_SIGMA), longest / mean) for _ in range(count)]
    scale = mean * count / sum(drawn)
    return [max(1, min(round(value * scale), longest)) for value in drawn]
