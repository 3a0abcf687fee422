"""Predicted against reported memory for starts that others published: the table of docs/reference/memory-accuracy.md.

    python bench/account_field.py FIELD_DIR [--markdown]

FIELD_DIR holds memory/given.jsonl and models/*.json. Each row whose model and settings are stated is predicted by the
shipped code, with the release's own defaults for what is not stated; every other row is listed with the reason.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from powerband.account.ledger import compute_ledger
from powerband.account.rules.vllm_blocks import lay_out_blocks
from powerband.account.weights import requantised
from powerband.probes.config_model import model_from_config
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig, Value
from powerband.records.model import ModelSpec
from powerband.records.units import GIB

WEIGHTS_WITHIN, CACHE_WITHIN, CACHE_MEDIAN = 0.005, 0.02, 0.005


@dataclass(frozen=True)
class Case:
    """How a row is predicted. ``compare`` names the figures of the row that its settings determine."""

    config: str
    version: str
    gib: float
    compare: tuple[str, ...]
    quant: str = ""
    card: str = "l4"
    count: int = 1
    knobs: dict[str, Value] = field(default_factory=dict)
    note: str = ""


H100 = {"card": "h100", "gib": 79.18}
LEN16K: dict[str, Value] = {"max_model_len": 16000, "gpu_memory_utilization": 0.9}
CASES: dict[str, Case] = {
    "M002": Case(
        "openai--gpt-oss-120b",
        "0.11",
        79.18,
        ("weights", "activation", "non_torch"),
        card="h100",
        knobs=LEN16K,
        note="its own lines add up to 0.63 GiB more than the budget, and it reports 3.33 GiB of cache",
    ),
    "M003": Case(
        "meta-llama--Llama-3.1-70B-Instruct",
        "0.11",
        79.18,
        ("weights", "activation", "non_torch", "kv_cache"),
        quant="fp8",
        card="h100",
        count=2,
        knobs=LEN16K,
    ),
    "M006": Case(
        "Qwen--Qwen3-32B", "0.11", 79.18, ("weights", "activation", "non_torch", "kv_cache"), card="h100", knobs=LEN16K
    ),
    "M007": Case(
        "Qwen--Qwen3-32B",
        "0.11",
        79.18,
        ("weights", "activation", "non_torch", "kv_cache"),
        card="h100",
        count=2,
        knobs=LEN16K,
    ),
    "M009": Case(
        "meta-llama--Llama-3.1-70B-Instruct",
        "0.11",
        79.18,
        ("weights", "kv_left"),
        quant="fp8",
        card="h100",
        knobs=LEN16K,
        note="nothing left for the cache; shown as a share of the budget",
    ),
    "M013": Case(
        "meta-llama--Meta-Llama-3.1-8B",
        "0.6",
        79.22,
        ("weights", "activation"),
        card="h100",
        count=2,
        knobs={"max_model_len": 8192},
        note="cache cut off; its 3.58 GiB beside PyTorch are unexplained",
    ),
    "M022": Case("meta-llama--Llama-3.1-8B-Instruct", "0.6", 23.58, ("weights",), knobs={"max_model_len": 35000}),
    "M024": Case("Qwen--Qwen3-14B", "0.11", 79.18, ("tokens_from_cache",), knobs={"max_model_len": 32768}),
    "M026": Case(
        "nvidia--Qwen3.6-35B-A3B-NVFP4",
        "0.24",
        31.35,
        ("tokens_from_cache",),
        card="rtx5090",
        knobs={
            "max_model_len": 131072,
            "kv_cache_dtype": "fp8",
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 1,
            "enable_prefix_caching": True,
        },
        note="its concurrency of 300 blocks over 69 shows two states a layer: prefix caching was on",
    ),
    "M027": Case(
        "Qwen--Qwen2.5-7B-Instruct",
        "0.7",
        8.0,
        ("weights", "activation"),
        quant="awq",
        card="rtx4060",
        knobs={"max_model_len": 4096, "gpu_memory_utilization": 0.7},
    ),
    "M033": Case("meta-llama--Llama-3.1-8B-Instruct", "0.11", 16.0, ("needed",), knobs={"max_model_len": 131072}),
    "M036": Case(
        "meta-llama--Llama-3.1-70B-Instruct",
        "0.8",
        79.18,
        ("weights",),
        quant="int8",
        card="h100",
        knobs={"max_model_len": 2048, "gpu_memory_utilization": 0.98},
    ),
    "M057": Case(
        "Qwen--Qwen3-8B",
        "0.8.5",
        79.15,
        ("weights",),
        quant="bitsandbytes",
        card="a100-80gb",
        knobs={"max_model_len": 1024},
        note="which of two 4-bit checkpoints was loaded is not stated",
    ),
    "M058": Case(
        "meta-llama--Llama-3.1-8B-Instruct",
        "0.6",
        22.07,
        ("weights", "activation", "non_torch", "kv_cache", "tokens", "tokens_from_cache"),
        knobs={"max_model_len": 131072, "gpu_memory_utilization": 0.9},
    ),
    "M062": Case(
        "Qwen--Qwen2-1.5B",
        "0.6",
        14.56,
        ("weights", "activation", "kv_cache", "tokens", "tokens_from_cache"),
        card="t4",
        knobs={"max_model_len": 32768, "gpu_memory_utilization": 0.5},
    ),
}
REASONS = {
    "M031": "model not named", "M034": "its capacity of 81536 tokens contradicts its own 8.69 GiB (94912 tokens)",
    "M037": "Gemma 3 27B: no config at hand, model inferred by size", "M043": "model not named",
    "M044": "a vLLM of 2024-08 that stored latents as full heads", "M046": "only nvidia-smi totals, no lines",
    "M047": "out of memory while loading: no lines", "M049": "DeepSeek V4: utilisation not stated, cache layout packed",
    "M053": "Qwen3.5-4B: no config at hand", "M060": "model not named, and its concurrency contradicts its cache",
    "M063": "model inferred, format of the weights not stated", "M066": "model not named",
    "M067": "cards, cache dtype and speculation not stated; its figures imply half the bytes of bf16 on one card",
    "M068": "model not named", "M069": "model inferred; used as a test of SGLang's rule instead",
    "M075": "utilisation and version not stated", "M078": "card not stated", "M079": "model not named",
    "M080": "model not named", "M082": "reporter's figure of the whole process", "M083": "figures given as about",
    "M085": "another plug-in's allocator (Metal)", "M087": "another plug-in's allocator (Tenstorrent)",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One compared figure, in bytes or tokens; ``base`` is what its error is a share of."""

    id: str
    figure: str
    predicted: float
    reported: float
    base: float
    note: str = ""

    @property
    def error(self) -> float:
        return (self.predicted - self.reported) / self.base


def load_rows(field_dir: Path) -> dict[str, dict[str, Any]]:
    lines = (field_dir / "memory" / "given.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def load_model(field_dir: Path, case: Case) -> ModelSpec:
    entry = json.loads((field_dir / "models" / f"{case.config}.json").read_bytes())
    model = model_from_config(entry["model"], entry["config"], case.config)
    return requantised(model, case.quant) if case.quant else model


def predict(field_dir: Path, rows: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Every comparison that the cases name."""
    for name, case in CASES.items():
        model = load_model(field_dir, case)
        device = msgspec.structs.replace(read_device(case.card), memory_bytes=round(case.gib * GIB))
        config = EngineConfig(engine="vllm", model=case.config, knobs=case.knobs)
        ledger = compute_ledger(model, device, config, count=case.count, version=case.version, remedies=False)
        for figure in case.compare:
            yield compare(name, case, figure, model, ledger.reported, rows[name]["reported"])


def compare(name: str, case: Case, figure: str, model: ModelSpec, ours: Any, theirs: dict[str, Any]) -> Row:
    if figure == "kv_left":
        left = theirs["kv_cache_gib_per_gpu"] * GIB
        return Row(name, "kv_cache", ours.kv_cache_bytes, left, ours.budget_bytes, case.note)
    if figure == "needed":
        needed = sequence_need(model, case)
        return Row(name, "cache for one sequence", needed, theirs["needed_kv_gib"] * GIB, needed)
    if figure == "tokens_from_cache":
        return tokens_row(name, case, model, theirs)
    if figure == "tokens":
        tokens = theirs["gpu_blocks"] * theirs["block_size"]
        return Row(name, "tokens", ours.kv_tokens, tokens, tokens)
    keys = {
        "weights": ("model_weights_gib_per_gpu", "model_weights_gib", "model_loading_gib", "model_loading_gib_per_gpu"),
        "activation": ("torch_peak_activation_gib",),
        "non_torch": ("non_torch_gib",),
        "kv_cache": ("kv_cache_gib_per_gpu", "kv_cache_gib"),
    }[figure]
    reported = next(theirs[key] for key in keys if key in theirs) * GIB
    return Row(name, figure, getattr(ours, f"{figure}_bytes"), reported, reported, case.note)


def tokens_row(name: str, case: Case, model: ModelSpec, theirs: dict[str, Any]) -> Row:
    """Tokens that the engine's own cache in bytes must hold: the block arithmetic alone."""
    size = float(theirs.get("available_kv_cache_gib") or theirs["kv_cache_gib"]) * GIB
    limit = int(case.knobs["max_model_len"])
    dtype_bytes = 1.0 if case.knobs.get("kv_cache_dtype") == "fp8" else 2.0
    in_flight = 2 * int(case.knobs.get("max_num_batched_tokens", 2048))
    states = 2 if case.knobs.get("enable_prefix_caching") else 1
    pool = lay_out_blocks(
        model, block_tokens=16, dtype_bytes=dtype_bytes, tp=1, limit=limit, in_flight=in_flight, states=states
    )
    assert pool is not None
    blocks = size // pool.block_bytes
    if case.version >= "0.20":
        ours = blocks / pool.blocks_per_request * limit
    else:
        ours = blocks // pool.groups * pool.block_tokens
    reported = theirs.get("kv_cache_tokens") or theirs["gpu_blocks"] * theirs["block_size"]
    return Row(name, "tokens in the reported cache", ours, reported, reported)


def sequence_need(model: ModelSpec, case: Case) -> float:
    limit = int(case.knobs["max_model_len"])
    pool = lay_out_blocks(model, block_tokens=16, dtype_bytes=2.0, tp=1, limit=limit, in_flight=4096)
    assert pool is not None
    return pool.blocks_per_request * pool.block_bytes


def passes(row: Row) -> bool | None:
    """Whether the row is within its bound; None where no bound is promised."""
    if row.figure == "weights":
        return abs(row.error) <= WEIGHTS_WITHIN
    if row.figure in ("kv_cache", "tokens", "tokens in the reported cache", "cache for one sequence"):
        return abs(row.error) <= CACHE_WITHIN
    return None


def draw(rows: list[Row], given: dict[str, dict[str, Any]]) -> str:
    out = [
        "| row | model, card | figure | predicted | reported | error | within |",
        "| --- | --- | --- | --: | --: | --: | --- |",
    ]
    for row in rows:
        tokens = "tokens" in row.figure
        ours, theirs = (f"{v:,.0f}" if tokens else f"{v / GIB:.3f} GiB" for v in (row.predicted, row.reported))
        verdict = {True: "yes", False: "**no**", None: ""}[passes(row)]
        what = f"{given[row.id]['model'][:44]}, {given[row.id]['gpu'][:24]}"
        out.append(f"| {row.id} | {what} | {row.figure} | {ours} | {theirs} | {row.error:+.2%} | {verdict} |")
    cache = [abs(row.error) for row in rows if row.figure == "kv_cache"]
    weights = [abs(row.error) for row in rows if row.figure == "weights"]
    out.append("")
    out.append(
        f"Weights: {sum(e <= WEIGHTS_WITHIN for e in weights)} of {len(weights)} within 0.5 %, median "
        f"{statistics.median(weights):.2%}. Cache: {sum(e <= CACHE_WITHIN for e in cache)} of {len(cache)} within 2 %, "
        f"median {statistics.median(cache):.2%}."
    )
    out += ["", "Rows that cannot be predicted, and why:", ""]
    out += [f"* {name} ({given[name]['model'][:60]}): {reason}" for name, reason in REASONS.items()]
    out += ["", "Notes on rows above:", ""]
    out += [f"* {name}: {case.note}" for name, case in CASES.items() if case.note]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("field_dir", type=Path)
    arguments = parser.parse_args()
    given = load_rows(arguments.field_dir)
    left = set(given) - set(CASES) - set(REASONS)
    if left:
        print(f"rows neither predicted nor explained: {sorted(left)}", file=sys.stderr)
    print(draw(list(predict(arguments.field_dir, given)), given))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
