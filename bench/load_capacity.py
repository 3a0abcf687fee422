"""Does ``powerband load --find max_goodput_rate`` land where a fine sweep of rates says?

The command is run as a user would; then rates around its answer, ``--step`` apart, are each sent ``--repeats`` times
with other seeds. The sweep's answer is where attainment, made to fall with the rate (pooled neighbours), crosses the
target. Printed: both, their ratio, and how many probes and seconds each took.

    python bench/load_capacity.py [--out docs/reference/load-capacity.md]     (about 20 minutes)

Servers: those of bench/load_aa.py.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from load_aa import FAKE_KNOBS, LLAMACPP_KNOBS, servers, started
from powerband.load.runner import run_load
from powerband.load.target import Loaded, Target
from powerband.load.traffic import at_rate, build_workload
from powerband.records.slo import Slo, parse_slo
from powerband.records.workload import Workload

# TTFT shows the queue; the thresholds are a few times what an idle server takes.
SLOS = {"fake": "ttft=150ms,attainment=0.9", "llamacpp": "ttft=2s,attainment=0.9"}
PROBE_S, REPEATS = {"fake": 15.0, "llamacpp": 40.0}, {"fake": 3, "llamacpp": 1}
LEAST_REQUESTS = 100
# 100 requests at random instants would differ by luck more than neighbouring rates do.
TRAFFIC = {"llamacpp": "in=32,out=16,arrivals=constant(1.2/s)"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe-seconds", type=float, help="15 for the fake, 40 for llama.cpp")
    parser.add_argument("--repeats", type=int, help="of each rate of the sweep: 3 for the fake, 1 for llama.cpp")
    parser.add_argument("--step", type=float, default=0.04, help="between neighbouring rates, as a share")
    parser.add_argument("--steps", type=int, default=4, help="to either side of the answer")
    parser.add_argument("--model", help="a .gguf file for llama.cpp")
    parser.add_argument("--only", choices=["fake", "llamacpp"])
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    args = parser.parse_args()
    rows = []
    for engine, config, traffic in servers(args.model):
        if args.only not in (None, engine):
            continue
        traffic = TRAFFIC.get(engine, traffic)
        with started(engine, config) as target:
            rows.append(
                {"engine": engine, "traffic": traffic, "slo": SLOS[engine], **measure(engine, target, traffic, args)}
            )
        print(json.dumps(rows[-1]), flush=True)
    if args.out is not None:
        args.out.write_text(document(rows, args))


def measure(engine: str, target: Target, traffic: str, args: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    probe_s, repeats = args.probe_seconds or PROBE_S[engine], args.repeats or REPEATS[engine]
    found = command(target, traffic, SLOS[engine], probe_s)
    search_s = time.monotonic() - began
    rate = found["rate_per_s"]
    if rate is None:
        return {"failed": found["reason"], "probe_s": probe_s, "repeats": repeats}
    slo = parse_slo(SLOS[engine])
    began = time.monotonic()
    rates = [rate * (1 + args.step) ** k for k in range(-args.steps, args.steps + 1)]
    points = [point(target, traffic, slo, r, probe_s, repeats) for r in rates]
    swept = crossing(rates, [good / sent for good, sent in points], [sent for _, sent in points], slo.attainment)
    return {
        "probe_s": probe_s,
        "repeats": repeats,
        "search": round(rate, 3),
        "search_interval": [round(found["interval"][side], 3) for side in ("low", "high")],
        "probes": len(found["probes"]),
        "search_s": round(search_s),
        "sweep": None if swept is None else round(swept, 3),
        "ratio": None if swept is None else round(rate / swept, 3),
        "sweep_s": round(time.monotonic() - began),
        "points": [[round(r, 3), good, sent] for r, (good, sent) in zip(rates, points, strict=True)],
    }


def command(target: Target, traffic: str, slo: str, probe_seconds: float) -> dict[str, Any]:
    argv = [sys.executable, "-m", "powerband", "load", target.url, "--model", target.model, "--traffic", traffic]
    argv += ["--find", "max_goodput_rate", "--slo", slo, "--probe-seconds", str(probe_seconds), "--json"]
    argv += ["--extra-body", json.dumps(target.extra_body), "--seed", "100"]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([*argv, "--home", home], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the search failed with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)["max_goodput_rate"]
    return found


def point(target: Target, traffic: str, slo: Slo, rate: float, seconds: float, repeats: int) -> tuple[int, int]:
    """Good and sent requests at one rate."""
    good = sent = 0
    for seed in range(repeats):
        count = max(LEAST_REQUESTS, round(rate * seconds))
        workload = at_rate(build_workload(traffic, requests=count, seed=seed), rate)
        loaded = unlimited(target, workload, 10 * seconds)
        good, sent = good + loaded.columns.good(slo), sent + len(loaded.columns)
    sys.stderr.write(f"{rate:8.3f}/s  {good} of {sent} good ({good / sent:.1%})\n")
    return good, sent


def unlimited(target: Target, workload: Workload, deadline_s: float) -> Loaded:
    """A run that the client did not spoil; three tries."""
    for _ in range(3):
        loaded = run_load(target, workload, t0_ns=time.monotonic_ns(), deadline_s=deadline_s)
        if loaded.client.verdict == "ok":
            return loaded
    raise SystemExit(f"the client is the limit: {loaded.client.reason}; this needs a quiet machine")


def crossing(rates: list[float], shares: list[float], weights: list[int], target: float) -> float | None:
    """Where attainment, pooled until it falls, crosses the target; None outside of the rates tried."""
    blocks: list[list[float]] = []  # mean, weight, count
    for share, weight in zip(shares, weights, strict=True):
        blocks.append([share, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            mean, total, count = blocks.pop()
            before = blocks[-1]
            before[0] = (before[0] * before[1] + mean * total) / (before[1] + total)
            before[1], before[2] = before[1] + total, before[2] + count
    fallen = np.array([mean for mean, _, count in blocks for _ in range(int(count))])
    if not fallen[0] >= target > fallen[-1]:
        return None
    above = int(np.flatnonzero(fallen >= target)[-1])
    share = (fallen[above] - target) / (fallen[above] - fallen[above + 1])
    return float(rates[above] * (rates[above + 1] / rates[above]) ** share)


def document(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    lines = [
        "# The capacity search beside a fine sweep",
        "",
        f"Made by `python bench/load_capacity.py`: rates {args.step:.0%} apart around the answer of",
        "`powerband load --find max_goodput_rate`, each sent as long as the search's own probes, and repeated.",
        "",
        "| server | promise | search (bracket) | probes | seconds | sweep | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['engine']} | {row['slo']} | none: {row['failed']} | – | – | – | – |")
            continue
        low, high = row["search_interval"]
        swept = "outside of the rates tried" if row["sweep"] is None else f"{row['sweep']:.3g}/s"
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}"
        lines.append(
            f"| {row['engine']} | {row['slo']} | {row['search']:.3g}/s ({low:.3g} to {high:.3g}) | {row['probes']} "
            f"| {row['search_s']} | {swept} | {ratio} |"
        )
    lines += ["", f"* fake: `{json.dumps(FAKE_KNOBS)}`; llamacpp: SmolLM2-135M, `{json.dumps(LLAMACPP_KNOBS)}`"]
    for row in rows:
        lines.append(
            f"* {row['engine']}: `{row['traffic']}`, {row['repeats']} x {row['probe_s']:g} s a rate of the sweep"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
