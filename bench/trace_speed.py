"""How fast is a large trace read, and in how much memory? Beside HolisticTraceAnalysis, where it is installed.

    python bench/trace_speed.py --field ../shared/field/traces --gigabytes 1 --hta /path/to/python-with-HTA

The large trace is made up: eager decode steps with operators, launches, kernels and Python frames, as torch.profiler
writes. Each tool runs in processes of its own, CPU seconds are taken; measurements are kept, so that a stopped bench
goes on where it was.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

OURS = """
import resource, sys, time
from pathlib import Path
from powerband.locate.timeline import diagnose_timeline
from powerband.probes.kineto import read_kineto
began = time.process_time()
found = diagnose_timeline(read_kineto(Path(sys.argv[1])))
seconds = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(seconds, peak, f"busy {found.gpu_busy_ratio:.4f}, {found.verdict}")
"""
THEIRS = """
import resource, sys, time
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
began = time.process_time()
_, frame, _ = parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())
seconds = time.process_time() - began
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, f"{len(frame)} rows parsed, nothing analysed")
"""


def write_trace(path: Path, size_bytes: int) -> int:
    """Write steps until the file is as large as asked; the number of events."""
    written = events = 0
    with path.open("w") as file:
        head = '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "made up"}],\n"traceEvents": [\n'
        written += file.write(head)
        step = 0
        while written < size_bytes:
            rows = step_events(step)
            events += len(rows)
            written += file.write(",\n".join(json.dumps(row) for row in rows) + ",\n")
            step += 1
        rows = step_events(step)
        file.write(",\n".join(json.dumps(row) for row in rows) + '\n], "traceName": "made up"}\n')
    return events + len(rows)


def step_events(step: int) -> list[dict[str, object]]:
    """One step: 100 operators of 30 us, each launching a kernel of 10 us, under three Python frames."""
    zero, rows = step * 5000.0 + 0.25, list[dict[str, object]]()
    for k in range(100):
        at, number = zero + 40 * k, step * 100 + k
        shape = {
            "External id": number,
            "Record function id": 0,
            "Input Dims": [[32, 4096], [4096, 4096]],
            "Ev Idx": number,
        }
        device = {
            "External id": number,
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": number,
            "grid": [64, 1, 1],
        }
        host, launch = {"ph": "X", "pid": 100, "tid": 100}, {"cbid": 211, "correlation": number}
        frame = f"model/layers/block_{k % 32}.py({k}): forward"
        rows += [
            {**host, "cat": "python_function", "name": frame, "ts": at, "dur": 36, "args": {"Python id": number}},
            {**host, "cat": "cpu_op", "name": f"aten::op{k % 20}", "ts": at + 2, "dur": 30, "args": shape},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 20, "dur": 6, "args": launch},
            {"ph": "s", "id": number, "pid": 100, "tid": 100, "ts": at + 20, "cat": "ac2g", "name": "ac2g"},
            {"ph": "X", "cat": "kernel", "name": f"void gemm_kernel_{k % 20}<float, 128, 128>(int, float const*)",
             "pid": 0, "tid": 7, "ts": at + 28, "dur": 10, "args": device},
        ]  # fmt: skip
    return rows


class Measured(msgspec.Struct):
    """One tool on one trace, in a process of its own; ``failed`` says why there are no figures."""

    trace: str
    megabytes_of_trace: float
    tool: str
    seconds: float = 0.0
    megabytes: float = 0.0
    said: str = ""
    failed: str = ""


def measure(name: str, path: Path, tool: str, python: str, code: str) -> Measured:
    command = [python, "-c", code, str(path.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    size = path.stat().st_size / 1e6
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed, probably for memory"])[-1]
        return Measured(name, size, tool, failed=last.rpartition("Error: ")[2][:120])
    seconds, megabytes, said = done.stdout.strip().splitlines()[-1].split(" ", 2)
    return Measured(name, size, tool, float(seconds), float(megabytes), said)


HEAD = """# How fast traces are read

`powerband` reads a trace and diagnoses it; HolisticTraceAnalysis {version} parses it into a table and analyses nothing.
Each in processes of its own: CPU seconds of all its threads without the imports (they do not depend on what else runs
on the machine), peak memory of the process; the fastest of {times}.
{machine}. Made by `python bench/trace_speed.py --hta PYTHON --field TRACES --gigabytes N --out PAGE`. With small traces
the memory is that of the imports; the made-up one is eager decode with operators, launches, kernels, Python frames.

| trace | size | powerband | at most | HTA, parsing alone | at most | faster | memory |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def table(rows: list[Measured]) -> str:
    lines = []
    for name in dict.fromkeys(row.trace for row in rows):
        mine = [row for row in rows if row.trace == name]
        best = {tool: fastest([row for row in mine if row.tool == tool]) for tool in ("powerband", "hta")}
        cells = [name, f"{mine[0].megabytes_of_trace:,.1f} MB"]
        for one in best.values():
            shown = one is not None and not one.failed
            cells += [f"{one.seconds:.2f} s", f"{one.megabytes:,.0f} MB"] if one and shown else [why(one), "-"]
        ours, theirs = best["powerband"], best["hta"]
        both = ours is not None and theirs is not None and not ours.failed and not theirs.failed
        if both and ours and theirs:
            cells += [f"{theirs.seconds / ours.seconds:.1f}x", f"1/{theirs.megabytes / ours.megabytes:.1f}"]
        else:
            cells += ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def fastest(rows: list[Measured]) -> Measured | None:
    good = [row for row in rows if not row.failed]
    return min(good, key=lambda row: row.seconds) if good else rows[0] if rows else None


def why(row: Measured | None) -> str:
    return "not run" if row is None else f"refused: {row.failed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, action="append", help="size of a made-up trace, repeatable")
    parser.add_argument("--made", type=Path, default=Path(tempfile.gettempdir()), help="where made-up traces are kept")
    parser.add_argument("--field", type=Path, help="a folder of traces (.json, .json.gz)")
    parser.add_argument("--hta", help="a Python interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--times", type=int, default=3, help="processes a tool and trace")
    parser.add_argument("--rows", type=Path, default=Path("trace-speed.jsonl"), help="measurements so far; kept up")
    parser.add_argument("--out", type=Path, help="write the page from the rows")
    args = parser.parse_args()
    traces = {path.name: path for path in sorted(args.field.glob("*.json*"))} if args.field else {}
    for gigabytes in args.gigabytes or []:
        path = args.made / f"powerband-made-up-{gigabytes:g}.json"
        if not path.is_file():
            write_trace(path, round(gigabytes * 1e9))
        traces[f"made up, {gigabytes:g} GB"] = path
    lines = args.rows.read_bytes().splitlines() if args.rows.exists() else []
    rows = [msgspec.json.decode(line, type=Measured) for line in lines]
    tools = {"powerband": (sys.executable, OURS)} | ({"hta": (args.hta, THEIRS)} if args.hta else {})
    for name, path in traces.items():
        for tool, (python, code) in tools.items():
            for _ in range(args.times - sum(row.trace == name and row.tool == tool for row in rows)):
                rows.append(measure(name, path, tool, python, code))
                print(rows[-1], flush=True)
                with args.rows.open("ab") as file:
                    file.write(msgspec.json.encode(rows[-1]) + b"\n")
    if args.out:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        head = HEAD.format(version=hta_version(args.hta), times=repeats(rows), machine=machine)
        args.out.write_text(head + table(rows))
    return 0


def repeats(rows: list[Measured]) -> str:
    counts = Counter((row.trace, row.tool) for row in rows).values()
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"


def hta_version(python: str | None) -> str:
    if python is None:
        return ""
    code = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
