"""How well three loads on a real vLLM predict others: one server, random weights, other batches, lengths and rates.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/predict_vllm.py measure --shape gqa-8b --out runs --budget 270
    PYTHONPATH=bench python bench/gpu/predict_vllm.py draw --runs runs --again others \\
        --out docs/reference/prediction-vllm.md

``measure`` keeps each run in --out (no load begins after the budget); ``draw`` fits the step time to the three
calibrating runs and predicts every other one. The cases and which of them calibrate were fixed before the first run.
--again: a folder of the same cases at another time, predicted from its own three, and compared run by run.
"""

import argparse
import gzip
import math
import statistics
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
from powerband.simulate.what_if import figures_of, what_if
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
APART = ("tpot_p50_s", "ttft_p50_s", "e2e_p50_s")
HEAD = """# Prediction after calibration: vLLM on an H200

Written by `bench/gpu/predict_vllm.py`: {shape} with random weights on one card, one server, prefix cache off. The step
time is fitted to three runs (one request at a time, 64 in flight, and chat arriving at 20/s), every other run is
predicted. Cases, and which of them calibrate, were fixed before the first run. Times in ms.

"""
NOTES = """
## Blind, and what was mended after it

The table is no blind test: the model was changed with these runs in view. As it stood when they were taken it gave, for
the same table, TPOT 7.4 %, TTFT 11.8 %, E2E 3.6 % and 37 of 44 intervals (84 %); for the other hour's runs below, which
it had not seen either, 7.2 %, 13.9 %, 4.5 % and 35 of 40 (88 %). Two things were then seen in them:

* A step with prompts and more than 512 tokens is in no graph, and takes at least what the host needs to launch it:
  steps of 400 tokens took 10 to 14 ms, of 650 took 37 to 41, of 1,030 as long, of 2,000 50. Before, that was laid to
  the prompt's tokens, so that long prompts came out 10 % too slow and chat too fast. It is a factor of its own now.
* vLLM's front end takes turns: with 256 requests at once the first tokens came after 50 ms, where they had been made to
  wait for all 256. One more request was with the scheduler every 1.4 to 1.7 ms (3 ms had been assumed).

What that front end takes (2 ms a request, 60 us a token) was chosen with all runs named on this page in view. Where a
launch takes 20 to 40 ms from one step to the next, as here, a burst of a few prompts is missed by that much (c4, c32,
burst).

## Other runs

Each set is fitted to its two smallest loads and predicts the others (medians of absolute errors):

| runs | TPOT | TTFT | E2E | intervals that hold |
| --- | --- | --- | --- | --- |
| 7B, bf16 of [quantisation](quantisation.md): 256 in flight, long prompts | 6.5 % | 3.9 % | 2.9 % | 8 of 8 |
| 7B, graphs of [its ladder](../case-study/gqa-7b-h200.md): 128 and 256 in flight | 0.3 % | 20.9 % | 1.6 % | 6 of 8 |
| 13B, graphs of [its ladder](../case-study/llama-13b-h200.md): 128, 192 and 256 | 5.6 % | 22.5 % | 5.5 % | 11 of 12 |
| 30B-A3B, graphs of [its ladder](../case-study/moe-30b-h200.md): 128 and 256 | 15.0 % | 8.7 % | 13.0 % | 6 of 8 |
| 30B-A3B, fp8, of its ladder: 128, 192 and 256 | 82 % | 49 % | 40 % | 7 of 12 |
| 7B, eager, of its ladder: 128 and 256 | 13.8 % | 10.7 % | 10.7 % | 5 of 8 |
| 13B, eager, of its ladder: 128, 192 and 256 | 5.2 % | 30.7 % | 7.6 % | 10 of 12 |

With experts in fp8 tokens came in bunches behind a front end that lagged, on a host slower than rung 5's, and one load
gave twice another's tokens/s ([why, as far as seen](../case-study/moe-30b-h200.md)): not understood here.
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


def stored(folder: Path) -> dict[str, Run]:
    return {
        name: msgspec.json.decode(gzip.decompress((folder / f"{name}.json.gz").read_bytes()), type=Run)
        for name in CASES
        if (folder / f"{name}.json.gz").exists()
    }


def drawn(runs: dict[str, Run], device: str) -> str:
    from predict_llamacpp import render

    text: str = render(
        {name: [run] for name, run in runs.items()},
        step_of([runs[name] for name in CALIBRATING], device),
        CALIBRATING,
        CUT_S,
    )
    return text


def other_time(runs: dict[str, Run], others: dict[str, Run], device: str) -> str:
    """The medians of the same cases at another time, and how far the two runs of a case lie apart."""
    medians, held = (line for line in drawn(others, device).splitlines() if line.startswith(("| **all**", "Of all")))
    lines = [
        "",
        "## The same cases at another time",
        "",
        "Another start on another host, whose second card served other models; predicted from its own three:",
        "",
        medians.replace("| **all** |", "| **all, the other time** |"),
        "",
        held,
        "",
        "Two runs of a case, with the same requests, lie apart by (a prediction that knew both would miss by half):",
        "",
        "| run | TPOT | TTFT | E2E |",
        "| --- | --- | --- | --- |",
    ]
    apart: dict[str, list[float]] = {name: [] for name in APART}
    for case in (case for case in runs if case in others):
        one, other = figures_of(runs[case].metrics()), figures_of(others[case].metrics())
        for name in APART:
            apart[name].append(math.log(other[name] / one[name]))
        lines.append(f"| {case} | " + " | ".join(f"{apart[name][-1]:+.1%}" for name in APART) + " |")
    off = errors_of_mean(runs, others, device)
    medians_apart = (f"{statistics.median(map(abs, apart[name])):.1%}" for name in APART)
    lines += [
        "| **median of absolute** | " + " | ".join(medians_apart) + " |",
        "",
        "Against the mean of both runs of a case, which is nearer to what the next run will give, the three of the "
        f"table above are off by (median of absolute): TPOT {off[0]:.1%}, TTFT {off[1]:.1%}, E2E {off[2]:.1%}.",
        "",
    ]
    return "\n".join(lines)


def errors_of_mean(runs: dict[str, Run], others: dict[str, Run], device: str) -> list[float]:
    """Median errors of each of APART against the geometric mean of both runs of a case that did not calibrate."""
    step = step_of([runs[name] for name in CALIBRATING], device)
    errors: dict[str, list[float]] = {name: [] for name in APART}
    for case in (case for case in runs if case in others and case not in CALIBRATING):
        run = runs[case]
        found = what_if(run.config, run.workload, step, deadline_s=None if run.workload.concurrency else CUT_S).metrics
        assert found is not None
        one, other, predicted = figures_of(run.metrics()), figures_of(others[case].metrics()), figures_of(found)
        for name in APART:
            errors[name].append(abs(predicted[name] / math.sqrt(one[name] * other[name]) - 1))
    return [statistics.median(errors[name]) for name in APART]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "draw"])
    parser.add_argument("--shape", choices=list(MODELS), default="gqa-8b")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--budget", type=float, default=270.0, help="seconds, the start included")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--again", type=Path, help="a folder of the same cases at another time")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.what == "measure":
        measure_all(args.shape, args.out, args.budget)
        return 0
    runs = stored(args.runs)
    text = HEAD.format(shape=Path(runs["c1"].config.model).name) + drawn(runs, args.device)
    if args.again:
        text += other_time(runs, stored(args.again), args.device)
    print(text + NOTES)
    args.out.write_text(text + NOTES, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
