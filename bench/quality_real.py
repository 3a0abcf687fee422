"""Quantisations and planted faults of one model through the quality gate: size, CPU cost, perplexity ratio, verdicts.

``python bench/quality_real.py REFERENCE.gguf LABEL=CANDIDATE[,knob=value...] ... --home DIR`` measures each candidate
under the chat and the code task and prints one Markdown row each; what was measured before is recalled from DIR.
``--repeats N`` asks the reference N times more, in turns of batch size, and counts how often it passes against itself.
"""

import argparse
import sys
import time
from pathlib import Path

import msgspec
import psutil

from powerband.engines.base import get_engine
from powerband.gate import Gate
from powerband.load.quality.tasks import load_task
from powerband.probes.http import read_json
from powerband.records.config import EngineConfig, parse_settings
from powerband.records.quality import QualityMetric, QualityReport
from powerband.records.value import known

_PROMPT, _ANSWER = 256, 48  # tokens


def side(text: str, threads: int) -> tuple[str, EngineConfig]:
    label, _, rest = text.rpartition("=") if "," not in text else text.partition(",")[0].rpartition("=")
    path = rest
    settings = text.split(",")[1:]
    knobs = parse_settings(settings, get_engine("llamacpp").knobs())
    base: dict[str, bool | int | float | str] = {"n_parallel": 4, "n_threads": threads}
    return label or Path(path).stem, EngineConfig(engine="llamacpp", model=path, knobs={**base, **knobs})


def cpu_ms_a_token(config: EngineConfig, folder: Path) -> tuple[float, float]:
    """CPU milliseconds of the engine on one thread, for a prompt token and for an answer token; least of three.

    CPU time and not the clock's, so that neighbours on the machine weigh little.
    """
    engine = get_engine(config.engine)
    running = engine.start(config.replace(n_parallel=1, n_threads=1, n_ctx=1024), folder)
    try:
        process = psutil.Process(running.pid)
        found = []
        for attempt in range(3):
            marks = [_cpu_s(process)]
            for prompt, answer in ((_PROMPT, 1), (16, _ANSWER)):
                ids = [1000 + (attempt * 331 + place * 7) % 20000 for place in range(prompt)]
                body = {"prompt": ids, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
                read_json(running.url + "/v1/completions", body=body, timeout_s=300)
                marks.append(_cpu_s(process))
            found.append((1e3 * (marks[1] - marks[0]) / _PROMPT, 1e3 * (marks[2] - marks[1]) / (16 + _ANSWER)))
        return min(one[0] for one in found), min(one[1] for one in found)
    finally:
        running.stop()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def cell(report: QualityReport, name: str, *, invert: bool = False) -> str:
    metric = next((one for one in report.metrics if one.name == name), None)
    if metric is None or metric.interval is None:
        return "–"
    value, low, high = known(metric.value) or 0.0, metric.interval.low, metric.interval.high
    if invert:
        return f"{1 - value:.1%} ({1 - high:.1%} to {1 - low:.1%})"
    return f"{value:.4g} ({low:.4g} to {high:.4g})"


def row(label: str, config: EngineConfig, reports: dict[str, QualityReport], costs: tuple[float, ...]) -> str:
    size = Path(config.model).stat().st_size / 2**20
    first = next(iter(reports.values()))
    cells = [label, f"{size:.1f}", *(f"{value:.1f}" for value in costs)]
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
    parser.add_argument("--no-cost", action="store_true")
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
        costs = () if given.no_cost else cpu_ms_a_token(config, given.home / "cost")
        print(row(label, config, reports, costs), flush=True)
        for name, report in reports.items():
            print(f"  {name}: {report.verdict}: {report.reason} [{worst_of(report.metrics)}]", file=sys.stderr)
        (given.home / f"{label}.json").write_bytes(msgspec.json.encode(reports))
        print(f"  took {time.monotonic() - began:.0f} s", file=sys.stderr)
    if given.repeats:
        print(against_itself(next(iter(gates.values())), reference, given.repeats))
    return 0


if __name__ == "__main__":
    sys.exit(main())
