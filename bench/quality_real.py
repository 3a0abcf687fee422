"""Quantisations and planted faults of one model through the quality gate: size, speed, perplexity ratio, verdicts.

``python bench/quality_real.py REFERENCE.gguf LABEL=CANDIDATE[,knob=value...] ... --home DIR`` measures each candidate
under the chat and the code task and prints one Markdown row each; what was measured before is recalled from DIR.
``--repeats N`` asks the reference N times more, in turns of batch size, and counts how often it passes against itself.
"""

import argparse
import sys
import time
from pathlib import Path

import msgspec

from powerband.engines.base import get_engine
from powerband.gate import Gate
from powerband.load.quality.tasks import load_task
from powerband.load.traffic import build_workload
from powerband.measure import measure
from powerband.records.config import EngineConfig, parse_settings
from powerband.records.quality import QualityMetric, QualityReport
from powerband.records.value import known

_TRAFFIC = {1: "in=256,out=64,concurrency=1", 8: "in=256,out=64,concurrency=8"}
_REQUESTS = {1: 4, 8: 16}


def side(text: str, threads: int) -> tuple[str, EngineConfig]:
    label, _, rest = text.rpartition("=") if "," not in text else text.partition(",")[0].rpartition("=")
    path = rest
    settings = text.split(",")[1:]
    knobs = parse_settings(settings, get_engine("llamacpp").knobs())
    base: dict[str, bool | int | float | str] = {"n_parallel": 4, "n_threads": threads}
    return label or Path(path).stem, EngineConfig(engine="llamacpp", model=path, knobs={**base, **knobs})


def speed(config: EngineConfig, concurrency: int, folder: Path) -> float:
    """Output tokens/s, the better of two runs: a neighbour on the machine only ever slows one down."""
    engine = get_engine(config.engine)
    best = 0.0
    for attempt in range(2):
        workload = build_workload(
            _TRAFFIC[concurrency], requests=_REQUESTS[concurrency], scale_lengths=None, scale_rate=None, seed=0
        )
        served = engine.complete(config.replace(n_parallel=concurrency), workload, frozenset())
        run = measure(
            engine,
            served,
            workload,
            run_id=f"speed-{concurrency}-{attempt}",
            folder=folder,
            command="bench/quality_real.py",
            cut_s=120.0,
        )
        best = max(best, run.metrics(None).output_tokens_per_s)
    return best


def cell(report: QualityReport, name: str, *, invert: bool = False) -> str:
    metric = next((one for one in report.metrics if one.name == name), None)
    if metric is None or metric.interval is None:
        return "–"
    value, low, high = known(metric.value) or 0.0, metric.interval.low, metric.interval.high
    if invert:
        return f"{1 - value:.1%} ({1 - high:.1%} to {1 - low:.1%})"
    return f"{value:.4g} ({low:.4g} to {high:.4g})"


def row(label: str, config: EngineConfig, reports: dict[str, QualityReport], speeds: list[float]) -> str:
    size = Path(config.model).stat().st_size / 1e6
    first = next(iter(reports.values()))
    cells = [label, f"{size:.1f}", *(f"{value:.0f}" for value in speeds)]
    cells += [cell(first, "perplexity_ratio"), cell(first, "divergence"), cell(first, "disagreement", invert=True)]
    cells += [reports[task].verdict for task in reports]
    return "| " + " | ".join(cells) + " |"


def against_itself(gate: Gate, reference: EngineConfig, repeats: int) -> str:
    """The reference with other batch sizes and slots, under its own name: nothing but noise may differ."""
    passed, widest = 0, 0.0
    for n in range(repeats):
        other = reference.replace(n_parallel=4 + n % 5, n_ubatch=(64, 128, 256, 512)[n % 4])
        fresh = Gate(task=gate.task, home=gate.home / f"again-{n}")
        for kept in (gate.home / "quality").glob("*.evidence"):
            target = fresh.home / "quality" / kept.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(kept.read_bytes())
        report = fresh.check(reference, other)
        passed += report.verdict == "passed"
        widest = max([widest, *(known(m.value) or 0.0 for m in report.metrics if m.name == "divergence")])
    return f"{passed} of {repeats} passed; widest divergence {widest:.2g}"


def worst_of(metrics: tuple[QualityMetric, ...]) -> str:
    failed = [metric.name for metric in metrics if metric.verdict == "failed"]
    return ", ".join(failed) or "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference")
    parser.add_argument("candidates", nargs="*", metavar="LABEL=FILE[,knob=value]")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--tasks", default="chat,code")
    parser.add_argument("--prompts", type=int, default=0)
    parser.add_argument("--answer-tokens", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--no-speed", action="store_true")
    given = parser.parse_args()
    tasks = [load_task(name, most=given.prompts, answer_tokens=given.answer_tokens) for name in given.tasks.split(",")]
    gates = {
        task.name: Gate(task=task, home=given.home, say=lambda line: print(line, file=sys.stderr)) for task in tasks
    }
    _, reference = side(given.reference, given.threads)
    for text in [f"reference={given.reference}", *given.candidates]:
        label, config = side(text, given.threads)
        began = time.monotonic()
        reports = {name: gate.check(reference, config) for name, gate in gates.items()}
        speeds = [] if given.no_speed else [speed(config, n, given.home / "speed") for n in (1, 8)]
        print(row(label, config, reports, speeds), flush=True)
        for name, report in reports.items():
            print(f"  {name}: {report.verdict}: {report.reason} [{worst_of(report.metrics)}]", file=sys.stderr)
        (given.home / f"{label}.json").write_bytes(msgspec.json.encode(reports))
        print(f"  took {time.monotonic() - began:.0f} s", file=sys.stderr)
    if given.repeats:
        print(against_itself(next(iter(gates.values())), reference, given.repeats))
    return 0


if __name__ == "__main__":
    sys.exit(main())
