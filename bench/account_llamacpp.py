"""Predicted against logged memory of llama.cpp: weights, KV cache, compute and output buffers, for several settings.

    python bench/account_llamacpp.py MODEL.gguf [--out FILE.json]

Each setting loads the model in a child process with the server's log level raised, and reads its buffers back. The
ledger is computed before the child starts. Needs the llamacpp extra; a small model takes about two seconds a setting.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from powerband.account.ledger import compute_ledger
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.startup_log import read_startup_log
from powerband.records.config import EngineConfig
from powerband.records.memory import EngineReport
from powerband.records.units import MIB

SETTINGS: tuple[dict[str, bool | int | float | str], ...] = (
    {"n_ctx": 2048, "n_parallel": 1},
    {"n_ctx": 4096, "n_parallel": 4},
    {"n_ctx": 8192, "n_parallel": 8},
    {"n_ctx": 3000, "n_parallel": 3},
    {"n_ctx": 8192, "n_parallel": 1},
    {"n_ctx": 4096, "n_parallel": 4, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    {"n_ctx": 8192, "n_parallel": 2, "cache_type_k": "q4_0", "cache_type_v": "f16"},
    {"n_ctx": 4096, "n_parallel": 4, "n_ubatch": 128},
    {"n_ctx": 4096, "n_parallel": 4, "n_ubatch": 1024},
    {"n_ctx": 4096, "n_parallel": 4, "n_batch": 256},
    {"n_ctx": 4096, "n_parallel": 4, "flash_attn": "off"},
    {"n_ctx": 8192, "n_parallel": 1, "flash_attn": "off"},
    {"n_ctx": 4096, "n_parallel": 4, "kv_unified": True},
)
# Never looked at while the layout of the compute buffer was worked out.
HELD_OUT: tuple[dict[str, bool | int | float | str], ...] = (
    {"n_ctx": 6144, "n_parallel": 6},
    {"n_ctx": 5000, "n_parallel": 2, "cache_type_k": "q8_0"},
    {"n_ctx": 4096, "n_parallel": 2, "n_ubatch": 256, "flash_attn": "off"},
    {"n_ctx": 2048, "n_parallel": 16, "n_batch": 1024, "n_ubatch": 256},
    {"n_ctx": 6000, "n_parallel": 3, "kv_unified": True, "n_ubatch": 128},
)
LINES = ("weights_bytes", "kv_cache_bytes", "activation_bytes")
GGML = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
CHILD = """
import json, os, sys
import xllamacpp
knobs = json.loads(sys.argv[2])
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.verbosity, params.port = 5, 0
for name, value in knobs.items():
    setattr(params, name, value)
server = xllamacpp.Server(params)  # kept: its destructor waits for a loop that may not have begun
os._exit(0)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    arguments = parser.parse_args()
    model, device = read_model(str(arguments.model)), read_device("cpu")
    rows: list[dict[str, Any]] = []
    for knobs in (*SETTINGS, *HELD_OUT):
        config = EngineConfig(engine="llamacpp", model=str(arguments.model), knobs=knobs)
        predicted = compute_ledger(model, device, config, remedies=False).reported
        reported = start_and_read(arguments.model, knobs)
        rows.append({"knobs": knobs, "held_out": knobs in HELD_OUT, **compare(predicted, reported)})
        print(draw(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1))
    return 0


def start_and_read(model: Path, knobs: dict[str, bool | int | float | str]) -> EngineReport:
    """The buffers that a server reports with these knobs."""
    native: dict[str, object] = {k: v for k, v in knobs.items() if k != "flash_attn"}
    for name in ("cache_type_k", "cache_type_v"):
        if name in native:
            native[name] = GGML[str(native[name])]
    if "flash_attn" in knobs:
        native["flash_attn_type"] = {"on": 1, "off": 0}.get(str(knobs["flash_attn"]), -1)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as handle:
            command = [sys.executable, "-c", CHILD, str(model.resolve()), json.dumps(native)]
            subprocess.run(command, stdout=handle, stderr=subprocess.STDOUT, timeout=60, check=True)
        return read_startup_log(log).report


def compare(predicted: EngineReport, reported: EngineReport) -> dict[str, Any]:
    result: dict[str, Any] = {}
    totals = [0.0, 0.0]
    for line in LINES:
        ours, theirs = getattr(predicted, line) or 0.0, getattr(reported, line) or 0.0
        result[line] = {"predicted": ours, "reported": theirs}
        totals[0] += ours
        totals[1] += theirs
    return {**result, "total_bytes": {"predicted": totals[0], "reported": totals[1]}}


def draw(row: dict[str, Any]) -> str:
    parts = [f"{', '.join(f'{k}={v}' for k, v in row['knobs'].items()):<62}"]
    for line in (*LINES, "total_bytes"):
        ours, theirs = row[line]["predicted"], row[line]["reported"]
        share = f"{ours / theirs - 1:+.2%}" if theirs else "-"
        parts.append(f"{line.removesuffix('_bytes')} {ours / MIB:.2f}/{theirs / MIB:.2f} MiB {share}")
    return "  ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
