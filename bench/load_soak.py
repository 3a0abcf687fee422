"""A long run at a high rate: does the generator's memory stay flat, and is every request sent also on disk?

Server (bench/load_server.c, sleeping between writes) and client have a core each; 16 chunks an answer. Every 30 s the
memory of the client and the size of the log; at the end requests the server counted less records in the log, the
slope of memory over the second half, and the error of TTFT over the whole run.

    python bench/load_soak.py [--minutes 30] [--rate 2500] [--json FILE]

It ends by itself, ``--minutes`` plus about 4 s of preparation and 15 s of reading the log a million requests.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from load_server import c_server, pin_client
from powerband.load.runner import run_load
from powerband.load.target import Loaded, Progress, Target
from powerband.load.trace_log import part_log, read_traces
from powerband.load.traffic import build_workload
from powerband.records.value import Missing

TTFT_MS, ITL_MS, CHUNKS = 50.0, 10.0, 16
SHOW_EVERY_S = 30.0
MIB = 1 << 20


class Memory:
    """The client's memory over the run, told by its progress once a second."""

    def __init__(self, log: Path) -> None:
        self._process, self._log = psutil.Process(), log
        self.rows: list[tuple[float, float]] = []  # seconds, MiB
        self._shown_s = -SHOW_EVERY_S

    def see(self, now: Progress) -> None:
        try:
            rss_mib = self._process.memory_info().rss / MIB
        except (OSError, psutil.Error):  # no file to spare for reading it: too many are in flight
            return
        self.rows.append((now.elapsed_s, rss_mib))
        if now.elapsed_s - self._shown_s < SHOW_EVERY_S:
            return
        self._shown_s = now.elapsed_s
        log = part_log(self._log, 0)
        size_mib = log.stat().st_size / MIB if log.exists() else 0.0
        print(
            f"{now.elapsed_s:7.0f} s  {now.completed + now.errors:>9} ended  {now.errors} errors  "
            f"client {rss_mib:7.1f} MiB  log {size_mib:7.1f} MiB",
            flush=True,
        )

    def slope_mib_per_min(self) -> float | None:
        """Least squares over the second half; None below ten readings."""
        half = np.array(self.rows[len(self.rows) // 2 :])
        return float(np.polyfit(half[:, 0] / 60, half[:, 1], 1)[0]) if len(half) >= 10 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=2500.0, help="requests/s")
    parser.add_argument("--concurrency", type=int, metavar="N", help="keep N in flight instead, and at most --rate")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    args = parser.parse_args()
    pin_client()
    found = soak(args.rate, 60 * args.minutes, args.concurrency)
    text = json.dumps(found, indent=1)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")


def soak(rate: float, seconds: float, concurrency: int | None) -> dict[str, Any]:
    count = int(rate * seconds)
    when = f"arrivals=poisson({rate}/s)" if concurrency is None else f"concurrency={concurrency}"
    deadline_s = seconds + 60 if concurrency is None else seconds
    before_mib = psutil.Process().memory_info().rss / MIB
    workload = build_workload(f"in=32,out={CHUNKS},{when}", requests=count)
    planned_mib = psutil.Process().memory_info().rss / MIB - before_mib
    with tempfile.TemporaryDirectory(prefix="powerband-soak-") as name:
        log = Path(name) / "traces.jsonl.gz"
        memory = Memory(log)
        with c_server(TTFT_MS, ITL_MS, CHUNKS, sleeps=True) as (url, server):
            cpu_s = time.process_time()
            loaded = run_load(
                Target(url, "fake"), workload, t0_ns=0, deadline_s=deadline_s, progress=memory.see, trace_log=log
            )
            cpu_s = time.process_time() - cpu_s
        return {
            "when": when,
            "minutes": seconds / 60,
            "planned_requests_mib": round(planned_mib, 1),
            "rss_mib": {"after 10 s": at(memory, 10), "after 60 s": at(memory, 60), "at the end": at(memory, 1e9)},
            "slope_mib_per_min_second_half": memory.slope_mib_per_min(),
            "peak_mib_with_reading_the_log": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            "log_mib": round(log.stat().st_size / MIB, 1),
            "cpu_s_per_1000_with_reading_the_log": round(1000 * cpu_s / max(1, len(loaded.columns)), 3),
            **checked(loaded, log, server, count),
        }


def at(memory: Memory, second: float) -> float | None:
    rows = [rss for when, rss in memory.rows if when <= second]
    return round(rows[-1], 1) if rows else None


def checked(loaded: Loaded, log: Path, server: dict[str, Any], count: int) -> dict[str, Any]:
    """Each planned request once in the log, and as many as the server counted."""
    seen = bytearray(count)
    stored = 0
    for trace in read_traces(log):
        seen[trace.index] += 1
        stored += 1
    metrics = loaded.columns.metrics(end_ns=loaded.end_ns)
    late = metrics.ttft_s
    return {
        "planned_at_most": count,
        "requests_the_server_counted": server["requests"],
        "records_stored": stored,
        "records_lost": server["requests"] - stored,
        "stored_once": seen.count(1) == stored,
        "completed": metrics.completed,
        "dropped_at_the_end": metrics.dropped,
        "requests_per_s": round(metrics.request_rate_per_s, 1),
        "errors": dict(loaded.columns.errors),
        "ttft_error_ms": None
        if isinstance(late, Missing)
        else {name: round(1e3 * getattr(late, name) - TTFT_MS, 3) for name in ("mean", "p50", "p90", "p99")},
        "server_late_us": server["late_us"],
        "client": {"verdict": loaded.client.verdict, "reason": loaded.client.reason},
        "notes": loaded.notes,
    }


if __name__ == "__main__":
    main()
