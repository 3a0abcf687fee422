"""Quantised checkpoints of one model, as engines serve them: speed at 1 and 8 requests, and what the gate says of them.

    POWERBAND_VLLM=/envs/vllm/bin/vllm POWERBAND_PYTHON=/envs/transformers/bin/python \
        python bench/quantise_serving.py MODELS --home DIR [--stage gate|speed|table] [--engine NAME] [--budget 900]

MODELS is the folder that bench/quantise_formats.py fills, with ``reference`` (16-bit safetensors) and ``gguf-F16``
beside the formats. Verdicts come from the command line itself: ``powerband verify REF CAND --quality`` for the answers,
then ``powerband verify REF-RUNS CAND-RUNS`` for speed and answers together. What is there is not done again, so that it
can be stopped and started; runs are taken in turns over the formats, and want a quiet machine.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.engines.base import get_engine
from powerband.load.target import Target
from powerband.load.traffic import build_workload
from powerband.measure import observe
from powerband.plan import Plan, write_plan
from powerband.records.config import EngineConfig, Value
from powerband.records.errors import PowerbandError
from powerband.records.units import MIB
from powerband.records.workload import Workload
from powerband.stores.run_dir import is_run, write_run
from powerband.stores.sqlite import Journal
from powerband.warm_up import warm_up

LOADS = {1: ("in=128,out=64,concurrency=1", 5), 8: ("in=128,out=64,concurrency=8", 32)}
# The gate is not about speed, and the machine need not be quiet for it: threads that wait for each other would crawl.
ONE_THREAD: dict[str, dict[str, Value]] = {
    "vllm": {"VLLM_CPU_OMP_THREADS_BIND": "0"},
    "llamacpp": {"n_threads": 1},
    "transformers": {"num_threads": 1},
}
START_S = {"vllm": 75.0, "transformers": 60.0, "llamacpp": 35.0}  # of a start and its loads: what a budget must hold


@dataclass(frozen=True)
class Group:
    """Formats that one engine serves with the same settings."""

    reference: str
    candidates: tuple[str, ...]
    knobs: dict[str, Value]


GROUPS = {
    "vllm": Group(
        "reference",
        ("w8a8", "gptq-llm-compressor", "awq-llm-compressor", "smoothquant"),
        {"enforce_eager": True, "max_model_len": 2048, "max_num_seqs": 8, "max_num_batched_tokens": 2048,
         "VLLM_CPU_KVCACHE_SPACE": 1, "enable_prefix_caching": False},
    ),
    "llamacpp": Group(
        "gguf-F16",
        ("gguf-Q8_0", "gguf-Q6_K", "gguf-Q4_K_M", "gguf-Q2_K"),
        {"n_parallel": 8, "n_threads": 2, "cache_prompt": False},
    ),
    "transformers": Group(
        "reference",
        ("int8", "int4", "bnb-nf4"),
        {"dtype": "bfloat16", "batching": "static", "batch_size": 8, "num_threads": 2},
    ),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--stage", choices=("gate", "speed", "table"), action="append", help="default: all three")
    parser.add_argument("--engine", choices=GROUPS, action="append", help="default: all")
    parser.add_argument("--only", action="append", default=[], metavar="FORMAT", help="these candidates alone")
    parser.add_argument("--repeats", type=int, default=2, help="starts of each format (default 2)")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds; nothing begins that would not fit")
    parser.add_argument("--task", default="chat")
    parser.add_argument("--prompts", type=int, default=10, help="prompts and passages of the gate (default 10)")
    parser.add_argument("--answer-tokens", type=int, default=48)
    args = parser.parse_args()
    until = time.monotonic() + args.budget
    Journal(args.home).close()
    stages = args.stage or ["gate", "speed", "table"]
    work = [
        (engine, label)
        for engine in args.engine or GROUPS
        for label in GROUPS[engine].candidates
        if not args.only or label in args.only
    ]
    if "gate" in stages:
        for engine, label in work:
            judge(args, engine, label)
    if "speed" in stages:
        measure_all(args, work, until)
    if "table" in stages:
        print(table(args, work))
    return 0


def config_of(models: Path, engine: str, label: str) -> EngineConfig:
    folder = (models / label).resolve()
    model = next(folder.glob("*.gguf")) if engine == "llamacpp" else folder
    config = EngineConfig(engine=engine, model=str(model), knobs=GROUPS[engine].knobs)
    return get_engine(engine).complete(config, workload_of(8), frozenset())


def workload_of(width: int) -> Workload:
    traffic, requests = LOADS[width]
    return build_workload(traffic, requests=requests, scale_lengths=None, scale_rate=None, seed=1)


def plan_of(args: argparse.Namespace, engine: str, label: str) -> str:
    config = config_of(args.models, engine, label).replace(**ONE_THREAD[engine])
    path = Path(args.home) / "plans" / f"{engine}-{label}.toml"
    write_plan(path, Plan(engine=engine, model=config.model, knobs=config.knobs))
    return str(path)


def powerband(args: argparse.Namespace, *words: str) -> dict[str, Any]:
    """A command of powerband's and its document; where it gives none, what it says instead."""
    task = ["--task", args.task, "--prompts", str(args.prompts), "--answer-tokens", str(args.answer_tokens)]
    command = [sys.executable, "-m", "powerband", "verify", *words, *task, "--home", str(args.home), "--json"]
    print("$ powerband", *command[3:], file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode in (0, 1) and done.stdout.strip():
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return {"error": told[-1] if told else f"exit {done.returncode}"}


def judge(args: argparse.Namespace, engine: str, label: str) -> None:
    """The gate, once a pair; a failure is kept as well, and tried again."""
    path = Path(args.home) / "gates" / f"{args.task}-{engine}-{label}.json"
    if path.is_file() and "error" not in json.loads(path.read_text(encoding="utf-8")):
        return
    began = time.monotonic()
    reference = plan_of(args, engine, GROUPS[engine].reference)
    found = powerband(args, reference, plan_of(args, engine, label), "--quality", "--quiet")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    said = found.get("error") or f"{found['quality']['verdict']}: {found['quality']['reason']}"
    print(f"{engine} {label}: {said} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)


def measure_all(args: argparse.Namespace, work: list[tuple[str, str]], until: float) -> None:
    for repeat in range(1, args.repeats + 1):
        for engine, label in sides(work):
            if time.monotonic() + START_S[engine] > until:
                print(f"{engine} {label}: left for the next call, no time", file=sys.stderr, flush=True)
                continue
            try:
                measure_one(args, engine, label, repeat)
            except PowerbandError as error:
                print(f"{engine} {label}: {error.message}", file=sys.stderr, flush=True)


def sides(work: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Every format with the reference of its engine before it, each once."""
    return list(dict.fromkeys(pair for engine, label in work for pair in ((engine, GROUPS[engine].reference),
                                                                          (engine, label))))  # fmt: skip


def run_id(engine: str, label: str, width: int, repeat: int | str) -> str:
    return f"{engine}-{label}-at-{width}-{repeat}"


def measure_one(args: argparse.Namespace, engine_name: str, label: str, repeat: int) -> None:
    """One start, and each load that has no run of this repeat yet."""
    runs = Path(args.home) / "runs"
    missing = [width for width in LOADS if not is_run(runs / run_id(engine_name, label, width, repeat))]
    if not missing:
        return
    engine, config = get_engine(engine_name), config_of(args.models, engine_name, label)
    log = Path(args.home) / "logs" / f"{engine_name}-{label}-{repeat}"
    log.mkdir(parents=True, exist_ok=True)
    running = engine.start(config, log)
    try:
        target = Target(url=running.url, model=running.model_id, extra_body=engine.extra_body)
        for width in missing:
            name, workload = run_id(engine_name, label, width, repeat), workload_of(width)
            warm_up(running, target, workload)
            run = observe(running, target, config, workload, run_id=name, command=" ".join(sys.argv), cut_s=120.0)
            write_run(runs / name, run)
            print(f"{name}: {run.metrics().output_tokens_per_s:.1f} tokens/s", file=sys.stderr, flush=True)
    finally:
        running.stop()


def table(args: argparse.Namespace, work: list[tuple[str, str]]) -> str:
    names = ("engine", "format", "MiB", "tokens/s at 1", "at 8", "at 8 over 16 bits", "first token at 1 over 16 bits",
             "perplexity ratio", "divergence, nats", "same first choice", "gate", "at 8, speed and gate")  # fmt: skip
    rows = [f"| {' | '.join(names)} |", f"| --- | --- |{' ---: |' * 8} --- | --- |"]
    for engine, label in sides(work):
        size = sum(path.stat().st_size for kind in ("*.safetensors", "*.gguf")
                   for path in (args.models / label).glob(kind)) / MIB  # fmt: skip
        if label == GROUPS[engine].reference:
            rows.append(f"| {engine} | {label} | {size:.1f} | {' | '.join(alone(args, engine, label))} | | | | | | | |")
            continue
        one, eight = (compared(args, engine, label, width) for width in LOADS)
        cells = [f"{size:.1f}", speed(one), speed(eight), ratio(eight, "output_tokens_per_s"), ratio(one, "ttft")]
        rows.append("| " + " | ".join([engine, label, *cells, *answers(args, engine, label), said(eight)]) + " |")
    return "\n".join(rows)


def alone(args: argparse.Namespace, engine: str, label: str) -> list[str]:
    """Tokens/s of the reference, as the comparison with any of its candidates has them."""
    for other in GROUPS[engine].candidates:
        found = [compared(args, engine, other, width) for width in LOADS]
        if all("metrics" in one for one in found):
            return [f"{row(one, 'output_tokens_per_s')['before']:.0f}" for one in found]
    return ["-"] * len(LOADS)


def compared(args: argparse.Namespace, engine: str, label: str, width: int) -> dict[str, Any]:
    """Speed and answers in one verdict: the command line's, on the runs that are here."""
    patterns = [run_id(engine, side, width, "*") for side in (GROUPS[engine].reference, label)]
    kept = Path(args.home) / "verdicts" / f"{engine}-{label}-at-{width}.json"
    runs = sorted(path.name for pattern in patterns for path in (Path(args.home) / "runs").glob(pattern))
    if kept.is_file() and json.loads(kept.read_text(encoding="utf-8"))["runs"] == runs:
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))["verdict"]
        return found
    found = powerband(args, *patterns, "--quiet") if runs else {"error": "no runs"}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"runs": runs, "verdict": found}, indent=1), encoding="utf-8")
    return found


def row(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The first metric whose name begins so."""
    return next((one for one in found.get("metrics", ()) if one["name"].startswith(name)), {})


def speed(found: dict[str, Any]) -> str:
    return f"{row(found, 'output_tokens_per_s').get('after', float('nan')):.0f}" if "metrics" in found else "-"


def ratio(found: dict[str, Any], name: str) -> str:
    one = row(found, name)
    if not one or not isinstance(one.get("ratio"), float) or not one.get("interval"):
        return "-"
    return f"{one['ratio']:.2f} [{one['interval']['low']:.2f}, {one['interval']['high']:.2f}]"


def answers(args: argparse.Namespace, engine: str, label: str) -> list[str]:
    path = Path(args.home) / "gates" / f"{args.task}-{engine}-{label}.json"
    found: dict[str, Any] = {"error": "not run"}
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
    if "error" in found:
        return ["-", "-", "-", found["error"]]
    by_name = {metric["name"]: metric for metric in found["quality"]["metrics"]}
    cells = []
    for name, form in (("perplexity_ratio", ".3f"), ("divergence", ".4f"), ("disagreement", ".3f")):
        one = by_name.get(name, {})
        value, interval = one.get("value"), one.get("interval")
        if not isinstance(value, int | float) or not interval:
            cells.append("-")
            continue
        ends = [value, interval["low"], interval["high"]]
        if name == "disagreement":
            ends = [1 - value, 1 - interval["high"], 1 - interval["low"]]
        cells.append(f"{ends[0]:{form}} [{ends[1]:{form}}, {ends[2]:{form}}]")
    return [*cells, found["quality"]["verdict"]]


def said(found: dict[str, Any]) -> str:
    return f"{found['verdict']}: {found['reason']}" if "verdict" in found else found.get("error", "-")


if __name__ == "__main__":
    sys.exit(main())
