"""Is verify honest under the noise of a real engine? Repeats of one config, drawn against each other.

    python bench/verify_real.py measure MODEL.gguf --runs /tmp/repeats --count 24
    python bench/verify_real.py draw --runs /tmp/repeats --comparisons 200 --out docs/reference/verify-real-noise.md

``measure`` starts llama.cpp afresh for every run of the same closed loop. ``draw`` takes two disjoint sets of them
again and again and compares them: A against A as they are, and A against the same runs with all times divided by the
speed-up that is to be found.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from powerband.engines.llamacpp import LlamaCpp
from powerband.load.traffic import build_workload
from powerband.measure import measure
from powerband.records.request import RequestTrace
from powerband.records.run import Contention, Run
from powerband.records.verdict import QualityResult
from powerband.verify.compare import compare

TRAFFIC, REQUESTS = "in=lognormal(4.0,0.5,16..200),out=lognormal(3.4,0.3,12..64),concurrency=4", 24
SETTINGS = {"n_parallel": 4}
CUT_S = 60.0
QUALITY = QualityResult(verdict="not_needed", reason="no changed knob alters the answers")
REPEATS, SPEEDS = (2, 3, 5), (1.0, 1.05, 1.1, 1.2)
STATED = 0.05  # of false keeps, at most


def collect(model: str, folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    engine = LlamaCpp()
    workload = build_workload(TRAFFIC, requests=REQUESTS, seed=3)
    config = engine.complete(engine.naive(model, workload).replace(**SETTINGS), workload, frozenset())
    for number in range(count):
        path = folder / f"repeat-{number:03d}.json"
        if path.exists():
            continue
        with tempfile.TemporaryDirectory() as logs:
            run = measure(
                engine,
                config,
                workload,
                run_id=path.stem,
                folder=Path(logs),
                command="bench/verify_real.py",
                cut_s=CUT_S,
            )
        if isinstance(run.contention, Contention) and run.contention.contended:
            print(f"{path.name}: contended, left for the next start")
            time.sleep(2)
            continue
        path.write_bytes(msgspec.json.encode(run))
        print(f"{path.name}: {run.metrics().output_tokens_per_s:.1f} output tokens/s", flush=True)


def sped_up(run: Run, speed: float) -> Run:
    """The run with every instant at 1/``speed`` of its time."""

    def at(instant: int | None) -> int | None:
        return None if instant is None else round(instant / speed)

    def trace(one: RequestTrace) -> RequestTrace:
        return msgspec.structs.replace(
            one,
            t_sched_ns=round(one.t_sched_ns / speed),
            t_send_ns=at(one.t_send_ns),
            t_end_ns=at(one.t_end_ns),
            t_chunks_ns=tuple(round(instant / speed) for instant in one.t_chunks_ns),
        )

    return msgspec.structs.replace(run, traces=tuple(map(trace, run.traces)), end_ns=round(run.end_ns / speed))


def draw(runs: list[Run], comparisons: int, repeats: int, speed: float) -> tuple[Counter[str], float]:
    """Verdicts, and how often the interval of output tokens/s held the truth."""
    chooser = random.Random(repeats * 1000 + round(speed * 100))
    verdicts: Counter[str] = Counter()
    held = 0
    for _ in range(comparisons):
        chosen = chooser.sample(runs, 2 * repeats)
        before, after = chosen[:repeats], [sped_up(run, speed) for run in chosen[repeats:]]
        found = compare(before, after, slo=None, quality=QUALITY)
        verdicts[found.verdict] += 1
        interval = next(m for m in found.metrics if m.name == "output_tokens_per_s").interval
        held += interval is not None and interval.low <= speed <= interval.high
    return verdicts, held / comparisons


def page(runs: list[Run], comparisons: int) -> str:
    speeds = [run.metrics().output_tokens_per_s for run in runs]
    noise = statistics.stdev(map(math.log, speeds))
    words = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    lines = [
        "# Verify under a real engine's noise",
        "",
        f"Written by `bench/verify_real.py`. {words}",
        "",
        f"{len(runs)} runs of llama.cpp (SmolLM2-135M Q4_1, 4 slots, two shared cores), `{TRAFFIC}`, {REQUESTS} "
        f"requests each. Output tokens/s differ by {noise:.1%} from run to run (standard deviation of the log), from "
        f"{min(speeds):.1f} to {max(speeds):.1f}. {comparisons} comparisons a row; sets of one row overlap, so a row "
        f"is worth fewer independent ones. Stated: keep in at most {STATED:.0%} where nothing changed, and an interval "
        "that holds the truth in 90 %.",
        "",
        "| repeats a side | true speed-up | keep | revert | undecided | interval held |",
        "| --- " * 6 + "|",
    ]
    for repeats in REPEATS:
        if 2 * repeats > len(runs):
            continue
        for speed in SPEEDS:
            verdicts, held = draw(runs, comparisons, repeats, speed)
            shares = " | ".join(f"{verdicts[name] / comparisons:.1%}" for name in ("keep", "revert", "undecided"))
            lines.append(f"| {repeats} | {speed - 1:.0%} | {shares} | {held:.1%} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=("measure", "draw"))
    parser.add_argument("model", nargs="?")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.action == "measure":
        collect(args.model, args.runs, args.count)
        return
    runs = [msgspec.json.decode(path.read_bytes(), type=Run) for path in sorted(args.runs.glob("*.json"))]
    text = page(runs, args.comparisons)
    if args.out:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
