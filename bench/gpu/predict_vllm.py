"""How well three loads on a real vLLM predict others: one server, random weights, other batches, lengths and rates.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/predict_vllm.py measure --shape gqa-8b --out runs --budget 270
    PYTHONPATH=bench python bench/gpu/predict_vllm.py draw --runs runs --out docs/reference/prediction-vllm.md

``measure`` keeps each run in --out (no load begins after the budget); ``draw`` fits the step time to the three
calibrating runs and predicts every other one. The cases and which of them calibrate were fixed before the first run.
"""

import argparse
import gzip
import sys
import time
from pathlib import Path

import msgspec
from shapes import MODELS, write_model

from powerband.engines.base import get_engine
from powerband.load.target import Target
from powerband.load.traffic import build_workload
from powerband.measure import observe
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig, Value
from powerband.records.run import Run
from powerband.simulate.calibrate import fit_step_time
from powerband.simulate.step_time import StepTime, predict_from_datasheet
from powerband.warm_up import warm_up

CUT_S = 15.0
KNOBS: dict[str, Value] = {
    "load_format": "dummy", "max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
}  # fmt: skip
CHAT = "in=lognormal(5.5,0.9,16..2000),out=lognormal(4.7,0.7,8..384)"
# name: traffic and requests, for about 8 s on a card that decodes 8B in 5 ms. The first three calibrate.
CASES = {
    "c1": ("in=512,out=128,concurrency=1", 10),
    "c64": ("in=512,out=128,concurrency=64", 320),
    "chat20": (f"{CHAT},arrivals=poisson(20/s)", 160),
    "c4": ("in=256,out=128,concurrency=4", 40),
    "c16": ("in=1024,out=64,concurrency=16", 200),
    "c32": ("in=128,out=192,concurrency=32", 192),
    "c128": ("in=256,out=96,concurrency=128", 640),
    "c256": ("in=128,out=128,concurrency=256", 1024),
    "documents": ("in=4000,out=32,concurrency=4", 48),
    "chat5": (f"{CHAT},arrivals=poisson(5/s)", 40),
    "chat35": (f"{CHAT},arrivals=poisson(35/s)", 280),
    "long": ("in=lognormal(7.8,0.4,800..7000),out=lognormal(4.0,0.5,16..200),arrivals=poisson(5/s)", 40),
    "talk": ("in=lognormal(4.0,0.6,16..200),out=lognormal(5.5,0.4,100..600),arrivals=poisson(12/s)", 96),
    "burst": ("in=300,out=100,arrivals=gamma(25/s,3)", 200),
}
CALIBRATING = ("c1", "c64", "chat20")
HEAD = """# Prediction after calibration: vLLM on an H200

Written by `bench/gpu/predict_vllm.py`: {shape} with random weights on one card, one server, prefix cache off. The step
time is fitted to three runs (one request at a time, 64 in flight, and chat arriving at 20/s), every other run is
predicted. Cases, and which of them calibrate, were fixed before the first run. Times in ms.

"""
NOTES = """
The server and the client of these runs had Python's debug allocator on (`PYTHONMALLOC=debug`, in search of a fault), so
that vLLM's own Python, its API server above all, was slower than it is: tokens of a step left it 55 us apart, and 27 to
46 us without. Where many tokens or requests pass it at once (c32, c128, c256, chat35) times are predicted too short for
that reason. One run a case.

These runs were seen while the model was mended, so that they are no blind test. Before, each gap between two tokens was
taken for a step. But vLLM's front end hands out the tokens of a step late while it takes in a new request, and those of
the next ones the sooner, so that prompts looked nearly free: the same fit gave TPOT errors of 18.5 %, TTFT 63.9 %, E2E
33.6 % and held 16 of 40. Gaps near prompts are added up now. Two further parts of vLLM are in the model since: steps
are made up one ahead (`async_scheduling`), and one front end takes requests in and hands tokens out in turn.

What that front end takes (3 ms a request, 70 us a token) was chosen on the first two of these, which ran without that
allocator. Each set was fitted to its two smallest loads, 1 and 32 or 64 in flight, and predicts two others (medians):

| runs | TPOT | TTFT | E2E | intervals that hold |
| --- | --- | --- | --- | --- |
| 7B, bf16 of [quantisation](quantisation.md) | 1.8 % | 2.5 % | 1.8 % | 8 of 8 |
| 7B, graphs of [its ladder](../case-study/gqa-7b-h200.md) | 1.8 % | 42 % | 4.4 % | 7 of 8 |
| 7B, eager | 6.4 % | 5.7 % | 6.5 % | 7 of 8 |
| 30B, graphs of [its ladder](../case-study/moe-30b-h200.md) | 21 % | 156 % | 38 % | 2 of 8 |

The last one is not understood: a step with experts grows less from 128 to 256 in flight than the model says.
"""


def measure_all(shape: str, out: Path, budget_s: float) -> None:
    until = time.monotonic() + budget_s
    out.mkdir(parents=True, exist_ok=True)
    if all((out / f"{name}.json.gz").exists() for name in CASES):
        return
    engine = get_engine("vllm")
    model = write_model(out / "models" / shape, MODELS[shape])
    config = EngineConfig(engine="vllm", model=str(model), knobs=KNOBS)
    running = engine.start(config, out)
    try:
        target = Target(url=running.url, model=running.model_id, extra_body=engine.extra_body)
        for name, (traffic, count) in CASES.items():
            if (out / f"{name}.json.gz").exists():
                continue
            if time.monotonic() > until - CUT_S:
                print(f"{name}: left out, no time", flush=True)
                continue
            workload = build_workload(traffic, requests=count, seed=len(name) + count)
            warm_up(running, target, workload)
            run = observe(running, target, config, workload, run_id=name, command="bench", cut_s=CUT_S)
            (out / f"{name}.json.gz").write_bytes(gzip.compress(msgspec.json.encode(run)))
            print(f"{name}: {run.metrics().output_tokens_per_s:,.0f} tok/s", flush=True)
    finally:
        running.stop()


def step_of(runs: list[Run], device: str) -> StepTime:
    shape = Path(runs[0].config.model).name
    model = read_model(str(write_model(Path("/tmp") / "powerband-shapes" / shape, MODELS[shape])))
    return fit_step_time(runs, predict_from_datasheet(model, read_device(device), runs[0].config))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "draw"])
    parser.add_argument("--shape", choices=list(MODELS), default="gqa-8b")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--budget", type=float, default=270.0, help="seconds, the start included")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.what == "measure":
        measure_all(args.shape, args.out, args.budget)
        return 0
    runs = {
        name: msgspec.json.decode(gzip.decompress((args.runs / f"{name}.json.gz").read_bytes()), type=Run)
        for name in CASES
        if (args.runs / f"{name}.json.gz").exists()
    }
    from predict_llamacpp import render

    step = step_of([runs[name] for name in CALIBRATING], args.device)
    text = HEAD.format(shape=Path(runs["c1"].config.model).name) + render(runs, step, CALIBRATING, CUT_S) + NOTES
    print(text)
    args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
