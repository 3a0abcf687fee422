"""How fast is a large trace read, and in how much memory? Beside HolisticTraceAnalysis, where it is installed.

    python bench/trace_speed.py --gigabytes 1 --hta /path/to/python-with-HTA

The trace is made up: eager decode steps with operators, launches, kernels and Python frames, as torch.profiler writes.
Each tool runs in a process of its own, once; peak memory is the process's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

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


def measure(python: str, code: str, path: Path) -> str:
    done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['killed, probably for memory'])[-1]}"
    seconds, megabytes, said = done.stdout.strip().splitlines()[-1].split(" ", 2)
    return f"{float(seconds):.1f} s, {float(megabytes):.0f} MB at most ({said})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--hta", help="a Python interpreter that has HolisticTraceAnalysis")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        events = write_trace(path, round(args.gigabytes * 1e9))
        print(f"{path.stat().st_size / 1e9:.2f} GB, {events} events")
        print("powerband:", measure(sys.executable, OURS, path), flush=True)
        if args.hta:
            print("HolisticTraceAnalysis:", measure(args.hta, THEIRS, path), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
