"""How exact the load generator's times are: against a server that keeps its own record of when each token was due.

Two parts, server and client each on a core of its own, new connection per request, Poisson arrivals, 16 chunks an
answer (TTFT 50 ms, ITL 10 ms):

1. rates up to the point where the client is the limit, against bench/load_server.c: the error of TTFT (counted from the
   scheduled instant) and of ITL, CPU seconds per 1,000 requests, memory;
2. the shipped fake engine at a rate it can serve: every token's arrival less its due time, counts compared exactly.

``python bench/load_precision.py [--rates 500,1000,...] [--seconds 6]`` prints a table and one JSON line.
"""

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from load_server import c_server, fake_server, pin_client
from powerband.load.runner import run_load
from powerband.load.target import Loaded, Target
from powerband.load.traffic import build_workload
from powerband.records.metrics import ttft_from_send_s, ttft_s

TTFT_MS, ITL_MS, CHUNKS = 50.0, 10.0, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rates", default="250,500,1000,1500,2000,2500,3000,3500,4000")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--fake-rate", type=float, default=300.0)
    args = parser.parse_args()
    pin_client()
    rows = [at_rate(float(rate), args.seconds) for rate in args.rates.split(",")]
    honest = [row["rate"] for row in rows if row["verdict"] == "ok" and row["ttft_error_ms"]["p99"] < 5]
    exact = against_fake(args.fake_rate, args.seconds)
    print(json.dumps({"rates": rows, "top_honest_rate": max(honest, default=None), "fake": exact}))


def at_rate(rate: float, seconds: float) -> dict[str, Any]:
    workload = build_workload(f"in=32,out={CHUNKS},arrivals=poisson({rate}/s)", requests=int(rate * seconds))
    with c_server(TTFT_MS, ITL_MS, CHUNKS) as (url, server):
        cpu_s = time.process_time()
        loaded = run_load(Target(url, "fake"), workload, t0_ns=time.monotonic_ns(), deadline_s=seconds + 20)
        cpu_s = time.process_time() - cpu_s
    row = {"rate": rate, "verdict": loaded.client.verdict} | errors(loaded)
    row |= {"cpu_s_per_1000": 1000 * cpu_s / len(workload.requests), "server_late_us": server["late_us"]}
    print(
        f"{rate:6.0f}/s  {row['verdict']:8} TTFT error p50 {row['ttft_error_ms']['p50']:7.3f} "
        f"p99 {row['ttft_error_ms']['p99']:8.3f} ms   ITL error p99 {row['itl_error_ms']['p99']:7.3f} ms   "
        f"CPU {row['cpu_s_per_1000']:.3f} s/1,000   server late p99 {server['late_us']['p99']} us   "
        f"counts {'exact' if row['counts_exact'] else 'WRONG'}",
        flush=True,
    )
    return row


def errors(loaded: Loaded) -> dict[str, Any]:
    done = [trace for trace in loaded.traces if trace.status == "ok"]
    late = [1e3 * value - TTFT_MS for trace in done if (value := ttft_s(trace)) is not None]
    from_send = [1e3 * value - TTFT_MS for trace in done if (value := ttft_from_send_s(trace)) is not None]
    gaps = np.concatenate([np.abs(np.diff(trace.t_chunks_ns) / 1e6 - ITL_MS) for trace in done])
    return {
        "requests": len(loaded.traces),
        "counts_exact": len(done) == len(loaded.traces) and all(t.output_tokens == CHUNKS for t in done),
        "ttft_error_ms": quantiles(late),
        "ttft_from_send_error_ms": quantiles(from_send),
        "itl_error_ms": quantiles(gaps),
    }


def against_fake(rate: float, seconds: float) -> dict[str, Any]:
    """Arrival less due time of every token; answers are matched in order of their first token."""
    workload = build_workload(f"in=32,out={CHUNKS},arrivals=poisson({rate}/s)", requests=int(rate * seconds))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "times.jsonl"
        with fake_server("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--log-times", str(log)) as url:
            loaded = run_load(Target(url, "fake"), workload, t0_ns=0, deadline_s=seconds + 20)
        due = sorted(json.loads(line)["due_s"] for line in log.read_text().splitlines())
    seen = sorted(trace.t_chunks_ns for trace in loaded.traces)
    counts = [len(times) for times in seen] == [len(times) for times in due]
    late = [
        (at - d * 1e9) / 1e6 for times, dues in zip(seen, due, strict=True) for at, d in zip(times, dues, strict=True)
    ]
    gaps = [abs((b - a) / 1e6 - ITL_MS) for times in seen for a, b in pairwise(times)]
    found = {"rate": rate, "counts_exact": counts, "token_late_ms": quantiles(late), "itl_error_ms": quantiles(gaps)}
    print(f"fake engine at {rate:.0f}/s: {json.dumps(found)}", flush=True)
    return found


def quantiles(values: Any) -> dict[str, float]:
    p50, p99, top = np.percentile(np.asarray(values), [50, 99, 100])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3), "max": round(float(top), 3)}


if __name__ == "__main__":
    main()
