"""How well a few trials of a real llama.cpp server predict others: other batches, lengths and rates, held out.

    python bench/predict_llamacpp.py MODEL.gguf --runs /tmp/runs --out docs/reference/prediction-llamacpp.md

Each case is one start of the server and one run of its traffic; runs are kept in --runs and not measured again. A run
on a contended host is repeated up to --attempts times and left out if it stays so. Then the step time is fitted to the
calibrating runs and every other run is predicted from it.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from powerband.engines.llamacpp import LlamaCpp
from powerband.load.traffic import build_workload
from powerband.measure import measure
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import Value
from powerband.records.metrics import Distribution
from powerband.records.run import Contention, Run
from powerband.simulate.calibrate import fit_step_time
from powerband.simulate.step_time import StepTime, predict_from_datasheet
from powerband.simulate.what_if import figures_of, what_if

CHAT = "in=lognormal(5.0,0.6,32..600),out=lognormal(3.6,0.5,16..120)"
LONG = "in=lognormal(6.3,0.4,200..1500),out=lognormal(3.4,0.5,16..80)"
TALK = "in=lognormal(4.0,0.6,16..200),out=lognormal(4.4,0.4,40..200)"
CUT_S = 60.0
# name: traffic, requests, settings. Three of them calibrate.
CASES: dict[str, tuple[str, int, dict[str, Value]]] = {
    "naive": (f"{CHAT},arrivals=poisson(0.7/s)", 14, {"n_parallel": 1}),
    "p8": (f"{CHAT},arrivals=poisson(1.3/s)", 26, {"n_parallel": 8}),
    "p4": (f"{CHAT},arrivals=poisson(1.1/s)", 22, {"n_parallel": 4}),
    "p2": (f"{CHAT},arrivals=poisson(0.9/s)", 18, {"n_parallel": 2}),
    "slow": (f"{CHAT},arrivals=poisson(0.6/s)", 12, {"n_parallel": 8}),
    "c2": ("in=100,out=64,concurrency=2", 24, {"n_parallel": 8}),
    "c8": ("in=100,out=64,concurrency=8", 48, {"n_parallel": 8}),
    "c16": ("in=64,out=48,concurrency=16", 64, {"n_parallel": 16}),
    "long": (f"{LONG},arrivals=poisson(0.3/s)", 7, {"n_parallel": 8}),
    "longub": (f"{LONG},arrivals=poisson(0.3/s)", 7, {"n_parallel": 8, "n_ubatch": 128}),
    "chat": (f"{TALK},arrivals=poisson(1.5/s)", 24, {"n_parallel": 8}),
    "nocb": (f"{CHAT},arrivals=poisson(1.1/s)", 22, {"n_parallel": 8, "cont_batching": False}),
    "fa": (f"{CHAT},arrivals=poisson(1.3/s)", 26, {"n_parallel": 8, "flash_attn": "off"}),
    "t1": (f"{CHAT},arrivals=poisson(0.6/s)", 12, {"n_parallel": 4, "n_threads": 1, "n_threads_batch": 1}),
}
CALIBRATING = ("naive", "p8", "c8")
FIGURES = ("tpot_p50_s", "ttft_p50_s", "e2e_p50_s", "output_tokens_per_s")


def run_case(model: str, name: str, attempts: int) -> Run | None:
    traffic, count, settings = CASES[name]
    engine = LlamaCpp()
    workload = build_workload(traffic, requests=count, seed=len(name) + count)
    config = engine.complete(engine.naive(model, workload).replace(**settings), workload, frozenset())
    for _ in range(attempts):
        with tempfile.TemporaryDirectory() as folder:
            run = measure(
                engine,
                config,
                workload,
                run_id=name,
                folder=Path(folder),
                command="bench/predict_llamacpp.py",
                cut_s=CUT_S,
            )
        if not (isinstance(run.contention, Contention) and run.contention.contended):
            return run
        time.sleep(5)
    return None


def collect(model: str, folder: Path, attempts: int) -> dict[str, Run]:
    folder.mkdir(parents=True, exist_ok=True)
    runs = {}
    for name in CASES:
        place = folder / f"{name}.json"
        if not place.exists():
            run = run_case(model, name, attempts)
            if run is None:
                print(f"{name}: the host stayed contended, left out")
                continue
            place.write_bytes(msgspec.json.encode(run))
        runs[name] = msgspec.json.decode(place.read_bytes(), type=Run)
    return runs


def step_of(runs: list[Run]) -> StepTime:
    prior = predict_from_datasheet(read_model(runs[0].config.model), read_device("cpu"), runs[0].config)
    return fit_step_time(runs, prior)


def render(runs: dict[str, Run]) -> str:
    """A row per held-out run, and the medians."""
    used = [runs[name] for name in CALIBRATING if name in runs]
    step = step_of(used)
    lines = [
        "| run | "
        + " | ".join(f"{name.removesuffix('_s')}: measured, predicted [90 %], error" for name in FIGURES)
        + " |",
        "| --- " * (len(FIGURES) + 1) + "|",
    ]
    errors: dict[str, list[float]] = {name: [] for name in FIGURES}
    held: dict[str, list[bool]] = {name: [] for name in FIGURES}
    for name, run in runs.items():
        if name in CALIBRATING:
            continue
        cut_s = None if run.workload.concurrency else CUT_S
        predicted = what_if(run.config, run.workload, step, deadline_s=cut_s)
        assert predicted.metrics is not None
        measured, expected = figures_of(run.metrics()), figures_of(predicted.metrics)
        cells = []
        for figure in FIGURES:
            unit = 1.0 if figure.endswith("per_s") else 1e3
            low, high = predicted.intervals[figure].low, predicted.intervals[figure].high
            error = expected[figure] / measured[figure] - 1
            errors[figure].append(abs(error))
            held[figure].append(low <= measured[figure] <= high)
            cells.append(
                f"{measured[figure] * unit:.4g}, {expected[figure] * unit:.4g} "
                f"[{low * unit:.4g}, {high * unit:.4g}], {error:+.0%}"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    medians = [
        f"median of absolute error {statistics.median(errors[f]):.1%}; interval holds {sum(held[f])} of {len(held[f])}"
        for f in FIGURES
    ]
    lines.append("| **all** | " + " | ".join(medians) + " |")
    inside = sum(sum(values) for values in held.values())
    every = sum(map(len, held.values()))
    lines += ["", f"Of all {every} intervals {inside} hold ({inside / every:.0%}; stated: 90 %)."]
    return "\n".join(lines) + "\n"


def noise(runs: dict[str, Run]) -> str:
    """What the machine itself varies by: the spread of single-sequence token times inside one run."""
    times = runs["naive"].metrics().tpot_s
    assert isinstance(times, Distribution)
    return f"Within the naive run alone, TPOT had p50 {times.p50 * 1e3:.1f} ms, p90 {times.p90 * 1e3:.1f} ms.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = collect(args.model, args.runs, args.attempts)
    text = "\n".join(
        [
            "# Prediction after calibration: llama.cpp on two shared cores",
            "",
            "Written by `bench/predict_llamacpp.py`: SmolLM2-135M Q4_1, xllamacpp, 2 threads. The step time is fitted "
            "to three runs (one slot; eight slots with arrivals, and as a closed loop), every other run is predicted. "
            "Times in ms. `p8` and `fa` serve the same requests with settings that cost the same here.",
            "",
            noise(runs),
            render(runs),
        ]
    )
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
