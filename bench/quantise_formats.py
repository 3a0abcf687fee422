"""Quantise one small model in every way that has a tool here, and print what each took: size, seconds, memory.

    python bench/quantise_formats.py --folder SAFETENSORS --gguf FILE.gguf --text PROMPTS.jsonl --out DIR \
        --python gptqmodel=/envs/a/bin/python --python llm-compressor=/envs/b/bin/python

Each row is one run of ``powerband quantize`` whose card stays beside its output; a run that fails is a row that says
so. Rows whose output exists already are read from their card.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from powerband.quantize.methods import parse_method
from powerband.quantize.run import read_card
from powerband.records.quantisation import QuantCard
from powerband.records.units import MIB

RUNS = (
    ("gguf:Q8_0", ""), ("gguf:Q6_K", ""), ("gguf:Q4_K_M", ""), ("gguf:Q2_K", ""), ("int8", ""), ("int4", ""),
    ("bnb-int8", ""), ("bnb-nf4", ""), ("gptq", "gptqmodel"), ("gptq", "llm-compressor"), ("awq", "llm-compressor"),
    ("smoothquant", ""), ("w8a8", ""), ("fp8", ""), ("nvfp4", ""), ("mlx4", ""),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", action="append", default=[], metavar="TOOL=PATH")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--only", action="append", default=[], metavar="METHOD")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    pythons = dict(pair.split("=", 1) for pair in args.python)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for method, tool in RUNS:
        if args.only and method not in args.only:
            continue
        rows.append(row_of(method, tool, args, pythons))
        print(rows[-1], flush=True)
    print()
    print("| method | tool | weights MiB | planned | CPU s | memory MiB | stored as |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    print("\n".join(rows))
    return 0


def row_of(method: str, tool: str, args: Any, pythons: dict[str, str]) -> str:
    job = parse_method(method, tool or None)
    name = method.replace(":", "-") + (f"-{tool}" if tool else "")
    place = args.out / name
    if not place.exists():
        failure = run(method, place, args, pythons.get(job.tool.name, sys.executable), tool)
        if failure:
            return f"| {method} | {job.tool.name} | failed: {failure} |"
    return as_row(read_card(place))


def run(method: str, place: Path, args: Any, python: str, tool: str) -> str:
    """Empty where it went well, else the error line."""
    gguf = method.startswith("gguf")
    command = [
        sys.executable, "-m", "powerband", "quantize", str(args.gguf if gguf else args.folder), "--method", method,
        "--engine", "any", "--device", "cpu", "--out", str(place), "--python", python, "--json", "--quiet",
        "--samples", str(args.samples), "--threads", str(args.threads),
    ]  # fmt: skip
    command += ["--tool", tool] if tool else []
    command += ["--calibration", str(args.text)] if parse_method(method).method.calibration == "wanted" else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        json.loads(done.stdout)
        return ""
    return done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit code {done.returncode}"


def as_row(card: QuantCard) -> str:
    stored = ", ".join(f"{count} {name}" for name, count in sorted(card.tensors.items()) if name != "f32")
    seconds = card.seconds if card.cpu_seconds is None else card.cpu_seconds
    return (
        f"| {card.method} | {card.tool} {card.versions.get(_package(card.tool), '')} | {card.output_bytes / MIB:.1f} |"
        f" {card.expected.output_bytes / MIB:.1f} | {seconds:.1f} | {card.peak_memory_bytes / MIB:.0f} | {stored} |"
    )


def _package(tool: str) -> str:
    return {"llm-compressor": "llmcompressor", "llama.cpp": "ik-llama-cpp-python"}.get(tool, tool)


if __name__ == "__main__":
    sys.exit(main())
