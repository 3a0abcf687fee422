"""How fast is a large trace read, and in how much memory? Beside HolisticTraceAnalysis, where it is installed.

    python bench/trace_speed.py --field ../shared/field/traces --gigabytes 1 --hta /path/to/python-with-HTA

The large trace is made up: eager decode steps with operators, launches, kernels and Python frames, as torch.profiler
writes. Each tool runs in processes of its own; rows are kept, so that a stopped bench goes on where it was.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

OURS = """
import resource, sys, time
from pathlib import Path
from powerband.locate.timeline import diagnose_timeline
from powerband.probes.kineto import read_kineto
began = time.monotonic()
found = diagnose_timeline(read_kineto(Path(sys.argv[1])))
seconds = time.monotonic() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(seconds, peak, f"busy {found.gpu_busy_ratio:.4f}, {found.verdict}")
"""
THEIRS = """
import resource, sys, time
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
began = time.monotonic()
_, frame, _ = parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())
seconds = time.monotonic() - began
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


class Measured(NamedTuple):
    seconds: float
    megabytes: float
    said: str


def measure(python: str, code: str, path: Path) -> Measured | str:
    """The time and peak memory of one tool on one trace, or why there is none."""
    done = subprocess.run(
        [python, "-c", code, str(path.resolve())], capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["killed, probably for memory"])[-1][:160]
    seconds, megabytes, said = done.stdout.strip().splitlines()[-1].split(" ", 2)
    return Measured(float(seconds), float(megabytes), said)


def best_of(times: int, python: str, code: str, path: Path) -> Measured | str:
    """The fastest of some processes, each of which reads the trace once."""
    found = [measure(python, code, path) for _ in range(times)]
    good = [one for one in found if isinstance(one, Measured)]
    return min(good, key=lambda one: one.seconds) if good else found[0]


def row(name: str, path: Path, ours: Measured | str, theirs: Measured | str | None) -> str:
    cells = [name, f"{path.stat().st_size / 1e6:,.1f} MB"]
    for one in (ours, theirs):
        if isinstance(one, Measured):
            cells += [f"{one.seconds:.2f} s", f"{one.megabytes:,.0f} MB"]
        else:
            cells += [one or "not run", "-"]
    if isinstance(ours, Measured) and isinstance(theirs, Measured):
        cells += [f"{theirs.seconds / ours.seconds:.0f}x", f"1/{theirs.megabytes / ours.megabytes:.1f}"]
    else:
        cells += ["-", "-"]
    return "| " + " | ".join(cells) + " |"


HEAD = """# How fast traces are read

`powerband` reads a trace and diagnoses it; HolisticTraceAnalysis {version} parses it into a table and analyses nothing.
Each in a process of its own, time without the imports, peak memory of the process; the fastest of {times}.
{machine}. Made by `python bench/trace_speed.py --hta PYTHON --field TRACES --gigabytes N --out PAGE`.

| trace | size | powerband | at most | HTA, parsing alone | at most | faster | memory |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, action="append", help="size of a made-up trace, repeatable; 0: none")
    parser.add_argument("--field", type=Path, help="a folder of traces (.json, .json.gz)")
    parser.add_argument("--hta", help="a Python interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--times", type=int, default=3, help="processes a tool and field trace (made-up ones: 1)")
    parser.add_argument("--rows", type=Path, default=Path("trace-speed.txt"), help="rows done so far, taken up again")
    parser.add_argument("--out", type=Path, help="write the page from the rows")
    args = parser.parse_args()
    done = args.rows.read_text().splitlines() if args.rows.exists() else []
    for path in sorted(args.field.glob("*.json*")) if args.field else []:
        if not any(line.startswith(f"| {path.name} |") for line in done):
            done.append(compare(path.name, path, args.hta, args.times))
            args.rows.write_text("\n".join(done) + "\n")
    for gigabytes in args.gigabytes or []:
        name = f"made up, {gigabytes:g} GB"
        if not any(line.startswith(f"| {name} |") for line in done):
            with tempfile.TemporaryDirectory() as folder:
                write_trace(Path(folder) / "trace.json", round(gigabytes * 1e9))
                done.append(compare(name, Path(folder) / "trace.json", args.hta, 1))
            args.rows.write_text("\n".join(done) + "\n")
    if args.out:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        head = HEAD.format(version=hta_version(args.hta), times=args.times, machine=machine)
        args.out.write_text(head + "\n".join(done) + "\n")
    return 0


def compare(name: str, path: Path, hta: str | None, times: int) -> str:
    ours = best_of(times, sys.executable, OURS, path)
    theirs = best_of(times, hta, THEIRS, path) if hta else None
    line = row(name, path, ours, theirs)
    print(line, flush=True)
    return line


def hta_version(python: str | None) -> str:
    if python is None:
        return ""
    code = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
