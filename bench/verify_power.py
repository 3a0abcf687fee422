"""Are the intervals honest? Made-up runs with a known effect and noise, compared many times.

    python bench/verify_power.py --count 400 --out docs/reference/verify-accuracy.md

No engine runs: a closed loop of one whose run-to-run noise and effect are set, so that the truth is known.
"""

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.value import Missing
from powerband.records.verdict import QualityResult
from powerband.records.workload import Workload
from powerband.verify.compare import compare

NS = 1_000_000_000
QUALITY = QualityResult(verdict="not_needed", reason="no changed knob alters the answers")
REQUESTS = 60


def make_run(seed: int, speed: float, run_sd: float, *, heavy: bool) -> Run:
    """One request after another; the noise a run shares is lognormal, or with ``heavy`` sometimes a slow episode."""
    lengths, noise = random.Random(7), random.Random(seed)
    shared = noise.lognormvariate(0, run_sd)
    if heavy and noise.random() < 0.1:
        shared *= 1 + 5 * run_sd
    now, traces = 0.0, []
    for index in range(REQUESTS):
        tokens = lengths.randint(5, 30)
        first = now + 0.2 * shared * noise.lognormvariate(0, 0.3) / speed
        times = tuple(round((first + 0.02 * shared * k / speed) * NS) for k in range(tokens))
        traces.append(
            RequestTrace(
                index=index,
                status="ok",
                input_tokens=50,
                output_tokens_asked=tokens,
                t_sched_ns=round(now * NS),
                t_send_ns=round(now * NS),
                t_end_ns=times[-1],
                t_chunks_ns=times,
                chunk_tokens=(1,) * tokens,
            )
        )
        now = times[-1] / NS
    return Run(
        run_id=f"made-{seed}",
        basis="measured",
        config=EngineConfig(engine="made", model="up"),
        effective=Missing(missing="made up"),
        workload=Workload(requests=(), source="made up"),
        traces=tuple(traces),
        end_ns=traces[-1].t_end_ns or 0,
    )


def repeat(count: int, repeats: int, run_sd: float, speed: float, *, heavy: bool) -> tuple[Counter[str], float]:
    """Verdicts of ``count`` comparisons, and how often the interval of output tokens/s held the truth."""
    verdicts: Counter[str] = Counter()
    held = 0
    for k in range(count):
        before = [make_run(1000 * k + j, 1.0, run_sd, heavy=heavy) for j in range(repeats)]
        after = [make_run(1000 * k + 500 + j, speed, run_sd, heavy=heavy) for j in range(repeats)]
        found = compare(before, after, slo=None, quality=QUALITY)
        verdicts[found.verdict] += 1
        interval = found.metrics[0].interval
        held += interval is not None and interval.low <= speed <= interval.high
    return verdicts, held / count


CELLS = tuple(
    (heavy, repeats, run_sd, speed)
    for heavy in (False, True)
    for repeats in (2, 3, 5)
    for run_sd in (0.01, 0.03)
    for speed in (1.0, 1.05, 1.2)
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=400, help="comparisons a row")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after the row that passes this time")
    parser.add_argument("--rows", type=Path, default=Path("verify-rows.txt"), help="finished rows; these are kept")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = args.rows.read_text().splitlines() if args.rows.exists() else []
    began = time.monotonic()
    for heavy, repeats, run_sd, speed in CELLS[len(rows) :]:
        verdicts, held = repeat(args.count, repeats, run_sd, speed, heavy=heavy)
        shares = " | ".join(f"{verdicts[name] / args.count:.1%}" for name in ("keep", "revert", "undecided"))
        noise = f"{run_sd:.0%}{', heavy' if heavy else ''}"
        rows.append(f"| {repeats} | {noise} | {speed - 1:.0%} | {shares} | {held:.1%} |")
        print(rows[-1], flush=True)
        args.rows.write_text("\n".join([*rows, ""]))
        if time.monotonic() - began > args.seconds:
            break
    if args.out:
        args.out.write_text(page(rows, args.count))
    return 0


def page(rows: list[str], count: int) -> str:
    head = f"""# How honest verify's intervals are

Made by `python bench/verify_power.py`: {count} comparisons a row of runs with {REQUESTS} requests whose effect and
run-to-run noise are set. `keep` in a row with effect 0 is a false alarm (stated: about 5 % at most); the interval is
stated to hold the truth in 90 %. Heavy noise: one run in ten is slower by five times the noise.

| repeats a side | noise between runs | true effect | keep | revert | undecided | interval held |
| --- | --- | --- | --- | --- | --- | --- |
"""
    return head + "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.exit(main())
