"""How far the datasheet alone predicts runs of our own on an H200: the rungs of the ladders, each load held out.

    python bench/predict_ladder.py HOME [HOME ...] --out docs/reference/prediction-h200.md

HOME is the journal of a ``bench/gpu/ladder.py``: vLLM 0.26 and Transformers on one H200, random weights, prompts of
284 tokens on average, answers of 71, a closed loop cut off after some seconds. No run calibrates another. The constants
were there before the runs, but for two: what eager launches cost a layer was taken from the lone loads of these very
runs, and what Transformers costs a layer from the lone one of llama-13b.
"""

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

from gpu.shapes import MODELS
from powerband.account.ledger import compute_ledger
from powerband.probes.config_model import model_from_config
from powerband.probes.device import read_device
from powerband.records.errors import RequestError
from powerband.records.model import ModelSpec
from powerband.records.run import Run
from powerband.records.value import Record
from powerband.simulate.step_time import predict_from_datasheet
from powerband.simulate.what_if import figures_of, what_if
from powerband.stores.run_dir import read_run

ALIASES = {"moe-30b-a3b": "moe-30b"}
SHOWN = {"tpot_p50_s": "TPOT", "ttft_p50_s": "TTFT", "output_tokens_per_s": "output tokens/s"}
FEWEST = 4  # answers that a run must have for a median to be told
KINDS = {
    "graphs": "vLLM with graphs",
    "eager": "vLLM, eager",
    "transformers": "Transformers",
}


class Point(Record):
    """A measured figure of a load beside its prediction."""

    kind: str
    model: str
    load: str
    what: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def model_of(run: Run) -> ModelSpec:
    name = Path(run.config.model).name
    return model_from_config(name, MODELS[ALIASES.get(name, name)], name)


def points_of(run: Run) -> list[Point]:
    """Empty where the run has too few answers."""
    if sum(trace.status == "ok" for trace in run.traces) < FEWEST:
        return []
    model, device = model_of(run), read_device("h200")
    ledger = compute_ledger(model, device, run.config, remedies=False)
    step = predict_from_datasheet(model, device, run.config)
    kv_tokens = ledger.capacity.kv_tokens if run.config.engine == "vllm" else None
    found = what_if(run.config, run.workload, step, kv_tokens=kv_tokens, deadline_s=run.end_ns / 1e9)
    if found.metrics is None:
        return []
    measured, expected = figures_of(run.metrics()), figures_of(found.metrics)
    eager = run.config.knobs.get("enforce_eager") is True
    kind = "transformers" if run.config.engine == "transformers" else "eager" if eager else "graphs"
    fp8 = ", fp8" if run.config.knobs.get("quantization") else ""
    return [
        Point(
            kind=KINDS[kind],
            model=model.name + fp8,
            load=f"{run.workload.concurrency}",
            what=word,
            measured=measured[name],
            predicted=expected[name],
            low=found.intervals[name].low,
            high=found.intervals[name].high,
        )
        for name, word in SHOWN.items()
        if name in measured and name in expected and measured[name] > 0
    ]


def collect(homes: list[Path]) -> tuple[list[Point], int]:
    points: list[Point] = []
    short = 0
    for home in homes:
        for folder in sorted((home / "runs").iterdir()):
            try:
                found = points_of(read_run(folder))
            except RequestError:  # a run that was cut off
                found = []
            points += found
            short += not found
    return points, short


def summary(points: list[Point]) -> list[str]:
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.what, point.kind].append(point)
    lines = [
        "| figure | engine | loads | median error | median of absolute | 90 % interval holds |",
        "| --- " * 6 + "|",
    ]
    for (what, kind), own in sorted(groups.items()):
        errors = [point.error for point in own]
        held = sum(point.low <= point.measured <= point.high for point in own)
        lines.append(
            f"| {what} | {kind} | {len(own)} | {statistics.median(errors):+.0%} "
            f"| {statistics.median(map(abs, errors)):.0%} | {held} of {len(own)} |"
        )
    return lines


def render(points: list[Point], short: int) -> str:
    words = (__doc__ or "").split("\n\n")
    lines = ["# Prediction from the datasheet: our own runs on an H200", ""]
    lines += [f"Written by `bench/predict_ladder.py`. {words[2]}".replace("\n", " "), ""]
    lines += [*summary(points), ""]
    lines += [f"{short} loads have under {FEWEST} answers, or were cut off, and are left out.", "", "## Every load", ""]
    lines += ["| engine | model | in flight | figure | measured | predicted [90 %] | error |", "| --- " * 7 + "|"]
    for point in points:
        unit, times = ("/s", 1.0) if point.what.endswith("/s") else (" ms", 1e3)
        lines.append(
            f"| {point.kind} | {point.model} | {point.load} | {point.what} | {point.measured * times:.4g}{unit} "
            f"| {point.predicted * times:.4g} [{point.low * times:.4g}, {point.high * times:.4g}] "
            f"| {point.error:+.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("homes", type=Path, nargs="+", metavar="HOME")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    text = render(*collect(args.homes))
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
