"""Predicted against reported memory of vLLM on one card: a ledger is written down before each start, then compared.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/account_vllm.py --device h200 --out results --only mha-7b,gqa-8b

Needs no model hub: each model is a config.json and a generated tokenizer, started with --load-format dummy (memory does
not depend on the values of weights). One start takes 30 to 150 s; ``--only`` splits the list over several calls; the
table is drawn from every result in the folder. A server that does not come up is a row with its reason.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from shapes import MODELS, write_model

from powerband.account.ledger import compute_ledger
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.startup_log import StartupLog, parse_startup_log
from powerband.records.config import EngineConfig
from powerband.records.errors import PowerbandError
from powerband.records.memory import EngineReport
from powerband.records.units import GIB

# name: (model, knobs). Graphs take most of a start, so half the runs are eager.
RUNS: dict[str, tuple[str, dict[str, bool | int | float | str]]] = {
    "mha-7b": ("mha-7b", {}),
    "mha-7b-small-batch": ("mha-7b", {"max_num_batched_tokens": 2048, "enforce_eager": True}),
    "gqa-8b": ("gqa-8b", {}),
    "gqa-8b-fp8": ("gqa-8b", {"quantization": "fp8", "max_num_batched_tokens": 16384, "enforce_eager": True}),
    "gqa-8b-fp8-cache": ("gqa-8b", {"kv_cache_dtype": "fp8", "max_num_seqs": 256, "enforce_eager": True}),
    "moe-30b": ("moe-30b", {}),
    "moe-30b-small-batch": ("moe-30b", {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "enforce_eager": True}),
    "moe-30b-fp8": ("moe-30b", {"quantization": "fp8", "enforce_eager": True}),
    "mla-16b": ("mla-16b", {}),
    "mla-16b-short": ("mla-16b", {"max_model_len": 8192, "max_num_batched_tokens": 2048, "enforce_eager": True}),
    # Held out: with graphs, after the constants were calibrated on the runs above.
    "gqa-8b-256": ("gqa-8b", {"max_num_seqs": 256}),
    "gqa-8b-warm": ("gqa-8b", {"max_num_seqs": 256}),  # the same again, from the compiler's cache
    "mla-16b-256": ("mla-16b", {"max_num_seqs": 256}),
    "mha-7b-256": ("mha-7b", {"max_num_seqs": 256, "max_num_batched_tokens": 4096}),
}
LINES = ("weights_bytes", "activation_bytes", "non_torch_bytes", "cuda_graphs_bytes", "kv_cache_bytes", "kv_tokens")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for logs, results and the table")
    parser.add_argument("--only", default="", help="comma-separated names: " + ", ".join(RUNS))
    parser.add_argument("--device", default="h200", help="catalogue name of the card (default h200)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one start (default 300)")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for all: no start begins after that")
    parser.add_argument("--predict-only", action="store_true", help="write predictions, start nothing")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = [name.strip() for name in arguments.only.split(",") if name.strip()] or list(RUNS)
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        parser.error(f"unknown run {unknown[0]}; there are {', '.join(RUNS)}")
    began = time.monotonic()
    for name in names:
        left = arguments.budget - (time.monotonic() - began)
        if left < 40 and not arguments.predict_only:
            print(f"{name}: left out, {left:.0f} s of the budget left", flush=True)
            continue
        try:
            run_one(name, arguments, min(arguments.timeout, left))
        except (OSError, PowerbandError, subprocess.SubprocessError) as error:
            save(arguments.out / f"{name}.json", {"name": name, "error": str(error)})
            print(f"{name}: {error}", flush=True)
    table = draw_table(arguments.out)
    (arguments.out / "table.txt").write_text(table, encoding="utf-8")
    print(table)
    return 0


def run_one(name: str, arguments: argparse.Namespace, timeout_s: float) -> None:
    kind, knobs = RUNS[name]
    folder = write_model(arguments.out / "models" / kind, MODELS[kind])
    device, model = read_device(arguments.device), read_model(str(folder))
    config = EngineConfig(engine="vllm", model=str(folder), knobs=knobs)
    ledger = compute_ledger(model, device, config, version="0.26.0", remedies=False)
    result: dict[str, Any] = {
        "name": name,
        "model": kind,
        "knobs": knobs,
        "device": arguments.device,
        "predicted": msgspec.to_builtins(ledger.reported),
        "predicted_lines": msgspec.to_builtins(ledger.lines),
        "predicted_at": time.time(),
    }
    save(arguments.out / f"{name}.json", result)  # written before anything starts
    if arguments.predict_only:
        return
    log, seconds, reason = start_and_stop(folder, knobs, arguments.out / f"{name}.log", timeout_s)
    result |= {"startup_s": seconds, "ended": reason}
    if log is not None:
        result |= {"reported": msgspec.to_builtins(log.report), "engine_version": log.version}
    save(arguments.out / f"{name}.json", result)
    print(f"{name}: {reason} after {seconds:.0f} s", flush=True)


def save(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))


def start_and_stop(
    folder: Path, knobs: dict[str, bool | int | float | str], log_path: Path, timeout_s: float
) -> tuple[StartupLog | None, float, str]:
    """Start a server, wait until its log holds the memory summary or it ends, and stop it with all its children."""
    command = ["vllm", "serve", str(folder), "--load-format", "dummy", "--port", "8765", "--host", "127.0.0.1"]
    for knob, value in knobs.items():
        flag = "--" + knob.replace("_", "-")
        command += [flag] if value is True else [flag, str(value)]
    debug = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_DEBUG_WORKSPACE": "1"}  # both tell more of what was allocated
    environment = os.environ | debug | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with log_path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            reason = wait_for_summary(process, log_path, began + timeout_s)
        finally:
            stop_group(process)
    seconds = time.monotonic() - began
    wait_until_free(60.0)
    text = log_path.read_text(encoding="utf-8", errors="replace")
    try:
        return parse_startup_log(text, str(log_path)), seconds, reason
    except PowerbandError as error:
        return None, seconds, f"{reason}; {error}"


def wait_for_summary(process: subprocess.Popen[bytes], log_path: Path, deadline: float) -> str:
    while time.monotonic() < deadline:
        text = log_path.read_text(encoding="utf-8", errors="replace")
        if "Application startup complete" in text:
            return "up"
        if process.poll() is not None:
            return f"ended with {process.returncode}: " + " | ".join(text.splitlines()[-3:])[-400:]
        time.sleep(1.0)
    return "not up in time"


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End the server and every worker it started; the group outlives its leader, so it is asked until it is gone."""
    for sign, patience_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                os.killpg(process.pid, sign)
            except (ProcessLookupError, PermissionError):
                break
            if process.poll() is not None and not group_alive(process.pid):
                return
            time.sleep(1.0)
    process.wait(timeout=10.0)


def group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def wait_until_free(patience_s: float) -> None:
    """Until the card holds less than 2 GiB, so that the next start sees it empty."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            shown = subprocess.run(
                ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                capture_output=True, text=True, timeout=20, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            time.sleep(3.0)
            return
        if int(shown.stdout.split()[0]) < 2048:
            return
        time.sleep(1.0)


def draw_table(folder: Path) -> str:
    """Predicted, reported and their difference, a block for each run; KV tokens again after one reconcile."""
    rows = [f"{'run':<22}{'line':<14}{'predicted':>12}{'reported':>12}{'difference':>12}{'share':>9}"]
    for name in RUNS:
        path = folder / f"{name}.json"
        if not path.is_file():
            continue
        result = msgspec.json.decode(path.read_bytes())
        if "reported" not in result:
            rows.append(f"{name:<22}{result.get('error') or result.get('ended') or 'predicted only'}")
            continue
        predicted = msgspec.convert(result["predicted"], EngineReport)
        reported = msgspec.convert(result["reported"], EngineReport)
        for line in LINES:
            rows.append(f"{name:<22}{draw_line(line, getattr(predicted, line), getattr(reported, line))}")
    return "\n".join(rows) + "\n"


def draw_line(line: str, predicted: float | None, reported: float | None) -> str:
    label = line.removesuffix("_bytes")
    if predicted is None or reported is None:
        shown = ["-" if value is None else f"{value:,.0f}" for value in (predicted, reported)]
        return f"{label:<14}{shown[0]:>16}{shown[1]:>16}"
    gap = predicted - reported
    share = f"{gap / reported:+.2%}" if reported else "-"
    if line == "kv_tokens":
        return f"{label:<14}{predicted:>12,.0f}{reported:>12,.0f}{gap:>+12,.0f}{share:>9}"
    return f"{label:<14}{predicted / GIB:>12.3f}{reported / GIB:>12.3f}{gap / GIB:>+12.3f}{share:>9}"


if __name__ == "__main__":
    sys.exit(main())
