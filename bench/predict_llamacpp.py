"""How well a few trials of a real llama.cpp server predict others: other batches, lengths and rates, held out.

    python bench/predict_llamacpp.py MODEL.gguf --runs /tmp/runs --all-cores /tmp/runs2 --grid /tmp/grid \\
        --out docs/reference/prediction-llamacpp.md

Each run is one start of the server; runs are kept in --runs and not measured again. A run on a contended host is
repeated up to --attempts times and left out if it stays so. The three calibrating cases are run once, with three times
the requests. Every other case is run --repeats times, in turn over the cases, and the mean of them is what the step
time fitted to the three has to predict: two runs of one config differ by more than a prediction should miss. The server
gets one core of two (--threads), the client the other. --all-cores is a folder of single runs with ``--threads 2``,
--grid one of ``bench/search_llamacpp.py measure``, whose repeats say by how much two runs differ there.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
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
from search_grid import Measured

CHAT = "in=lognormal(5.0,0.6,32..600),out=lognormal(3.6,0.5,16..120)"
LONG = "in=lognormal(6.3,0.4,200..1500),out=lognormal(3.4,0.5,16..80)"
TALK = "in=lognormal(4.0,0.6,16..200),out=lognormal(4.4,0.4,40..200)"
CUT_S = 60.0
ONE_CORE = 0.6  # of the traffic that two cores get
LONGER = 3  # times the requests, of a calibrating run
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
}
CALIBRATING = ("naive", "p8", "c8")
FIGURES = ("tpot_p50_s", "ttft_p50_s", "e2e_p50_s", "output_tokens_per_s")


def cases(threads: int) -> dict[str, tuple[str, int, dict[str, Value]]]:
    """The cases with so many threads, and one with another number."""

    def on(count: int, settings: dict[str, Value]) -> dict[str, Value]:
        return {**settings, "n_threads": count, "n_threads_batch": count}

    other = 2 if threads == 1 else 1
    same = {name: (traffic, count, on(threads, settings)) for name, (traffic, count, settings) in CASES.items()}
    odd = (f"{CHAT},arrivals=poisson({1.1 if other > 1 else 0.6}/s)", 12, on(other, {"n_parallel": 4}))
    return {**same, f"t{other}": odd}


def run_case(model: str, name: str, attempts: int, threads: int) -> Run | None:
    traffic, count, settings = cases(threads)[name]
    engine = LlamaCpp()
    slower = None
    if threads == 1 and name in CASES:  # as much less traffic as one core does less
        slower, count = ONE_CORE if "arrivals" in traffic else None, max(5, round(ONE_CORE * count))
    seed = len(name) + count
    if name in CALIBRATING:
        count *= LONGER
    workload = build_workload(traffic, requests=count, scale_rate=slower, seed=seed)
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
                cut_s=CUT_S * (LONGER if name in CALIBRATING else 1),
            )
        if not (isinstance(run.contention, Contention) and run.contention.contended):
            return run
        time.sleep(5)
    return None


def collect(model: str, folder: Path, attempts: int, threads: int, repeats: int) -> dict[str, list[Run]]:
    folder.mkdir(parents=True, exist_ok=True)
    for repeat in range(repeats):
        for name in cases(threads):
            place = folder / f"{name}-{repeat}.json"
            if place.exists() or (repeat and name in CALIBRATING):
                continue
            run = run_case(model, name, attempts, threads)
            if run is None:
                print(f"{name}: the host stayed contended, left out", flush=True)
                continue
            place.write_bytes(msgspec.json.encode(run))
            print(f"{place.name} {time.strftime('%T')}", flush=True)
    return stored(folder, threads)


def step_of(runs: list[Run]) -> StepTime:
    prior = predict_from_datasheet(read_model(runs[0].config.model), read_device("cpu"), runs[0].config)
    return fit_step_time(runs, prior)


def render(runs: Mapping[str, Sequence[Run]], step: StepTime, calibrating: Collection[str], cut_s: float) -> str:
    """A row per held-out case, measured as the mean of its runs; one of an open schedule ended ``cut_s`` after it
    began."""
    lines = [
        "| run | "
        + " | ".join(f"{name.removesuffix('_s')}: measured, predicted [90 %], error" for name in FIGURES)
        + " |",
        "| --- " * (len(FIGURES) + 1) + "|",
    ]
    errors: dict[str, list[float]] = {name: [] for name in FIGURES}
    held: dict[str, list[bool]] = {name: [] for name in FIGURES}
    for name, found in runs.items():
        if name in calibrating:
            continue
        config, workload = found[0].config, found[0].workload
        predicted = what_if(config, workload, step, deadline_s=None if workload.concurrency else cut_s)
        assert predicted.metrics is not None
        measured, expected = [figures_of(run.metrics()) for run in found], figures_of(predicted.metrics)
        cells = []
        for figure in FIGURES:
            unit = 1.0 if figure.endswith("per_s") else 1e3
            seen = statistics.geometric_mean([one[figure] for one in measured])
            low, high = predicted.intervals[figure].low, predicted.intervals[figure].high
            error = expected[figure] / seen - 1
            errors[figure].append(abs(error))
            held[figure] += [low <= one[figure] <= high for one in measured]
            cells.append(
                f"{seen * unit:.4g}, {expected[figure] * unit:.4g} [{low * unit:.4g}, {high * unit:.4g}], {error:+.0%}"
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


def table(runs: Mapping[str, Sequence[Run]]) -> str:
    return render(runs, step_of([runs[name][0] for name in CALIBRATING if name in runs]), CALIBRATING, CUT_S)


def noise(runs: Mapping[str, Sequence[Run]]) -> str:
    """What the machine itself varies by: inside one run, and from run to run of a case."""
    times = runs["naive"][0].metrics().tpot_s
    assert isinstance(times, Distribution)
    text = f"Within the naive run alone, TPOT had p50 {times.p50 * 1e3:.1f} ms, p90 {times.p90 * 1e3:.1f} ms."
    repeated = [[figures_of(run.metrics()) for run in found] for found in runs.values() if len(found) > 1]
    if repeated:
        spread = {
            name: statistics.median(statistics.stdev([math.log(one[name]) for one in found]) for found in repeated)
            for name in FIGURES
        }
        told = ", ".join(f"{name.removesuffix('_s')} {value:.1%}" for name, value in spread.items())
        text += f" Runs of one case scatter by (standard deviation, median of cases): {told}."
    return text + "\n"


def floor(folder: Path) -> str:
    """How far two runs of one config of the grid lie apart: what no prediction can better."""
    found: dict[str, list[dict[str, float]]] = {}
    for path in sorted(folder.glob("*.json")):
        one = msgspec.json.decode(path.read_bytes(), type=Measured)
        if one.run is not None:
            found.setdefault(one.config.key, []).append(figures_of(one.run.metrics()))
    pairs = [two for two in found.values() if len(two) == 2 and all(name in one for one in two for name in FIGURES)]
    lines = [
        f"Of the grid of [search-llamacpp](search-llamacpp.md), on both cores, {len(pairs)} configs were run twice "
        "with the same requests. A prediction that knew the mean of all runs of a config would still miss one run by "
        "the second column (median; the first over the root of 2).",
        "",
        "| figure | two runs differ by | a perfect prediction misses one by |",
        "| --- | --- | --- |",
    ]
    for name in FIGURES:
        apart = statistics.median(abs(math.log(one[name] / other[name])) for one, other in pairs)
        lines.append(f"| {name.removesuffix('_s')} | {apart:.1%} | {apart / math.sqrt(2):.1%} |")
    return "\n".join(lines) + "\n"


def stored(folder: Path, threads: int) -> dict[str, list[Run]]:
    """The runs of a folder by case: NAME-0.json, NAME-1.json ..., or NAME.json alone."""
    runs: dict[str, list[Run]] = {}
    for name in cases(threads):
        for path in sorted([*folder.glob(f"{name}.json"), *folder.glob(f"{name}-[0-9].json")]):
            runs.setdefault(name, []).append(msgspec.json.decode(path.read_bytes(), type=Run))
    return runs


def hour(folder: Path, threads: int) -> str:
    """The medians of another hour's runs, predicted from its own three."""
    medians, held = (
        row for row in table(stored(folder, threads)).splitlines() if row.startswith(("| **all", "Of all"))
    )
    return f"{medians}\n\n{held}\n"


def apart(hours: Sequence[Path], threads: int) -> str:
    """How far the runs of a case in two hours lie apart."""
    one, other = (
        {name: figures_of(found[0].metrics()) for name, found in stored(folder, threads).items()}
        for folder in hours[:2]
    )
    spread = {
        name: [abs(math.log(other[case][name] / one[case][name])) for case in one if case in other] for name in FIGURES
    }
    told = ", ".join(
        f"{name.removesuffix('_s')} {statistics.median(values):.0%} (up to {max(values):.0%})"
        for name, values in spread.items()
    )
    return f"The runs of one case in the last two hours lie apart by (median of cases): {told}.\n"


IN_VIEW = (
    "These runs are no blind test: that pauses recur, that unfused attention reads whole views of the cache and what "
    "part of the cores is worth was put into the model with runs of both cores in view.\n"
)
HOURS = """The table above is of a quiet hour and no longer blind: how slots are followed was mended with it in view
(blind: TPOT 4.2 %, TTFT 7.3 %, E2E 7.0 %, 43 of 44 intervals). The same cases were run again in two other hours, after
that, the calibrating ones with three times the requests; the machine's cores are shared with others:
"""
HEAD = """# Prediction after calibration: llama.cpp on two cores

Written by `bench/predict_llamacpp.py`: SmolLM2-135M Q4_1, xllamacpp. The step time is fitted to three runs (one slot;
eight slots with arrivals, and as a closed loop), every other run is predicted. Times in ms.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of the server (default 1)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of a case that does not calibrate (default 3)")
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--all-cores", type=Path, help="a folder of runs with --threads 2, drawn beside")
    parser.add_argument("--hours", type=Path, nargs="+", help="two folders or more of the same cases at other hours")
    parser.add_argument("--grid", type=Path, help="a folder of repeats, to say what no prediction can better")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = collect(args.model, args.runs, args.attempts, args.threads, args.repeats)
    parts = [HEAD, f"## Threads of the server: {args.threads}\n", noise(runs), table(runs)]
    if args.threads > 1:
        parts.insert(2, IN_VIEW)
    if args.hours:
        parts += ["## Other hours, blind\n", HOURS, *(hour(folder, args.threads) for folder in args.hours)]
        parts.append(apart(args.hours[-2:], args.threads))
    if args.all_cores:
        others = stored(args.all_cores, 2)
        parts += ["## Threads of the server: 2, the client on the same two cores\n", IN_VIEW]
        parts += [noise(others), table(others)]
    if args.grid:
        parts += ["## What two runs of one config differ by\n", floor(args.grid)]
    text = "\n".join(parts)
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
