"""What a quantised 7B costs and saves on one card with vLLM: TTFT and TPOT at 1, 32 and 256 in flight, and of prompts.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/quant_speed.py --device h200 --out results

bf16, fp8 (quantised while loading) and 4 bits (a GPTQ checkpoint; AWQ where that does not start) of one shape with
dummy weights: speed does not depend on their values. All servers start at once, since an idle one disturbs nothing, and
are measured one at a time. Each load is predicted before it is sent: by the datasheet, and with what the compatibility
table saw of the kernel. ``--draw`` makes the table again from the folder, without a card (unpack runs.tar.gz in its
work/ first), and adds what calibration by the runs of bf16 alone says of the others.
"""

import argparse
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from shapes import MODELS, write_model

from powerband.account.ledger import compute_ledger
from powerband.engines.openai import read_settings
from powerband.engines.process import HOST, free_port, start_process, wait_ready
from powerband.engines.running import Running
from powerband.load.runner import run_load
from powerband.load.target import Target
from powerband.load.traffic import build_workload
from powerband.measure import observe
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.http import read_json
from powerband.quantize.methods import parse_method
from powerband.quantize.plan import Setting, ask, step_at
from powerband.quantize.resized import in_format
from powerband.records.config import EngineConfig, Value
from powerband.records.errors import PowerbandError
from powerband.records.metrics import Distribution, Metrics
from powerband.records.run import ClientCheck, Contention, Run
from powerband.records.workload import Workload
from powerband.simulate.step_time import StepTime, predict_from_datasheet
from powerband.simulate.what_if import what_if
from powerband.stores.run_dir import read_run, write_run

SHAPE = "gqa-7b"
GIB = 1 << 30
KNOBS: dict[str, Value] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_model_len": 4096,
    "gpu_memory_utilization": 0.28,
    "kv_cache_memory_bytes": 22 * GIB,  # 256 sequences of 640 tokens take 20
    "enable_prefix_caching": False,
}
# Without weights vLLM cannot see which modules are quantised, and would quantise none: they are named.
_ATTENTION = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
_MODULES = [[*_ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]]
GPTQ = {
    "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
    "modules_in_block_to_quantize": _MODULES,
}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
# Format: what config.json says of it, knobs, and the method of `powerband quantize` that makes it.
FORMATS: dict[str, tuple[dict[str, Any], dict[str, Value], str]] = {
    "bf16": ({}, {}, ""),
    "fp8": ({}, {"quantization": "fp8"}, "fp8"),
    "gptq": ({"quantization_config": GPTQ}, {}, "gptq"),
    "awq": ({"quantization_config": AWQ}, {}, "awq"),
}
INSTEAD = {"gptq": "awq"}
# Load: traffic, requests (about 8 s of bf16), processes that send. Cut by the clock, it is cut at the end of this list.
LOADS = {
    "1 in flight": ("in=512,out=128,concurrency=1", 14, 1),
    "32 in flight": ("in=512,out=128,concurrency=32", 224, 2),
    "prompts": ("in=3000,out=4,concurrency=4", 96, 1),
    "256 in flight": ("in=512,out=128,concurrency=256", 768, 4),
}
WARM_INPUT_TOKENS, WARM_OUTPUT_TOKENS = 32768, 16  # of all warm-up prompts, of each answer
FIGURES = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "tpot_p50_s", "tpot_p99_s", "output_tokens_per_s")
BYS = ("datasheet", "table")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the rows, the runs and the table")
    parser.add_argument("--device", default="h200", help="catalogue name of the card (default h200)")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds; no load begins in the last 30 of them")
    parser.add_argument("--predict-only", action="store_true", help="print what is expected, start nothing")
    parser.add_argument("--draw", action="store_true", help="draw the table of what is in --out")
    parser.add_argument("--vllm", default="vllm", help=argparse.SUPPRESS)  # a stand-in, to rehearse without a card
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.predict_only:
        for name in FORMATS:
            for load in LOADS:
                note_predictions(args, name, load)
    elif not args.draw:
        measure_all(args, time.monotonic() + args.budget)
    table = draw(args.out)
    if args.draw:  # takes a while, and no card
        table += calibrated(args.out, args.device)
    (args.out / "table.txt").write_text(table, encoding="utf-8")
    print(table)
    return 0


def measure_all(args: argparse.Namespace, until: float) -> None:
    """Start all, then load by load one format after the other, so that a clock that runs out leaves whole rows."""
    work = args.out / "work"
    servers = start_all(args, work, until)
    try:
        for load in LOADS:
            for name, running in servers.items():
                if time.monotonic() > until - 30:
                    note(args.out, what="left out", format=name, load=load, why="no time left")
                    continue
                note_predictions(args, name, load)
                measure_one(args, work, name, running, load)
    finally:
        with ThreadPoolExecutor(len(FORMATS)) as pool:
            list(pool.map(Running.stop, servers.values()))
        for name in ("runs", "logs"):
            if (work / name).is_dir():
                with tarfile.open(args.out / f"{name}.tar.gz", "w:gz") as archive:
                    archive.add(work / name, arcname=name)


def start_all(args: argparse.Namespace, work: Path, until: float) -> dict[str, Running]:
    """Every format at once; one that dies has its substitute started, or is tried once more alone, where time is."""
    names = [name for name in FORMATS if name not in INSTEAD.values()]
    found: dict[str, Running] = {}
    with ThreadPoolExecutor(len(names)) as pool:
        for pair in pool.map(lambda name: start_or_instead(args, work, name), names):
            found |= pair
    for name in names:
        if name not in found and INSTEAD.get(name) not in found and time.monotonic() < until - 270:
            found |= try_start(args, work, name)
    return found


def start_or_instead(args: argparse.Namespace, work: Path, name: str) -> dict[str, Running]:
    found = try_start(args, work, name)
    if not found and name in INSTEAD:
        return try_start(args, work, INSTEAD[name])
    return found


def try_start(args: argparse.Namespace, work: Path, name: str) -> dict[str, Running]:
    """The server by its name, or nothing and a row with the reason."""
    began = time.monotonic()
    log = work / "logs" / f"{name}.log"
    try:
        running = start(args.vllm, work, name, log)
    except PowerbandError as error:
        tail = list(getattr(error, "log_tail", ()))[-8:]
        note(args.out, what="start", format=name, seconds=time.monotonic() - began, error=error.message, tail=tail)
        return {}
    note(args.out, what="start", format=name, seconds=running.startup_s, version=running.version, log=kernels(log))
    return {name: running}


def start(vllm: str, work: Path, name: str, log: Path) -> Running:
    config, port = config_of(work, name), free_port()
    url, began = f"http://{HOST}:{port}", time.monotonic()
    command = [vllm, "serve", config.model, "--load-format", "dummy", "--host", HOST, "--port", str(port)]
    for knob, value in config.knobs.items():
        flag = knob.replace("_", "-")
        command += [f"--{flag}"] if value is True else [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    process = start_process(command, log=log, name="vllm", env=environment, grace_s=8.0)
    try:
        wait_ready(process, url, 240.0, name=f"vllm ({name})")
        version = str(read_json(f"{url}/version", timeout_s=10).get("version"))
    except BaseException:
        process.stop()
        raise
    return Running(
        url, model_id=config.model, version=version, process=process, startup_s=time.monotonic() - began,
        read_effective=lambda: read_settings(url, "", dict(config.knobs)),
    )  # fmt: skip


def kernels(log: Path) -> list[str]:
    """The lines in which vLLM says which kernels it takes."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    words = ("kernel", "marlin", "quantization", "attention backend", "flash_attn")
    return [line[-200:] for line in lines if any(word in line.lower() for word in words)][:12]


def config_of(work: Path, name: str) -> EngineConfig:
    said, knobs, _ = FORMATS[name]
    folder = work / "models" / (name if said else SHAPE)
    if not folder.is_dir():
        write_model(folder, {**MODELS[SHAPE], **said})
    return EngineConfig(engine="vllm", model=str(folder), knobs={**KNOBS, **knobs})


def workload_of(load: str) -> Workload:
    traffic, requests, _ = LOADS[load]
    return build_workload(traffic, requests=requests, scale_lengths=None, scale_rate=None, seed=1)


def step_of(work: Path, device_name: str, name: str, by: str, fitted: StepTime | None = None) -> StepTime:
    """The step time of a format: from the datasheet (``fitted``: calibrated by runs), and ``by`` the table as well."""
    device, config = read_device(device_name), config_of(work, name)
    method = FORMATS[name][2]
    if by == "table" and method:
        plain = config_of(work, "bf16")
        model, job = read_model(plain.model), parse_method(method, None)
        setting = Setting(model=model, device=device, config=plain, step_time=fitted)
        support = ask(setting, job)
        return step_at(setting, in_format(model, job.format, 128 if method != "fp8" else None), support)
    step = predict_from_datasheet(read_model(config.model), device, config)
    if fitted is None:
        return step
    return msgspec.structs.replace(fitted, model=step.model, config=config, terms=step.terms)


def predict(work: Path, device_name: str, name: str, load: str, step: StepTime) -> dict[str, Any]:
    """Figures and 90 % intervals of a load, as the row that is kept."""
    config = config_of(work, name)
    ledger = compute_ledger(read_model(config.model), read_device(device_name), config, remedies=False)
    # At the step's own config: it holds the bytes of the format already, and the knobs of the scheduler are the same.
    found = what_if(step.config, workload_of(load), step, kv_tokens=ledger.capacity.kv_tokens)
    if found.metrics is None:
        return {"refused": found.refused}
    return {"figures": figures(found.metrics), "intervals": msgspec.to_builtins(found.intervals)}


def note_predictions(args: argparse.Namespace, name: str, load: str) -> None:
    work = args.out / "work"
    for by in BYS:
        row = predict(work, args.device, name, load, step_of(work, args.device, name, by))
        note(args.out, what="predicted", format=name, load=load, by=by, **row)


def measure_one(args: argparse.Namespace, work: Path, name: str, running: Running, load: str) -> None:
    """A warm-up at the load's own concurrency, then the load; a run that breaks is a row with the reason."""
    workload, workers = workload_of(load), LOADS[load][2]
    target = Target(url=running.url, model=running.model_id, extra_body={"ignore_eos": True})
    run_id = f"{name}-{load.replace(' ', '-')}"
    try:
        run_load(target, warming(workload), t0_ns=time.monotonic_ns(), deadline_s=30.0)
        run = observe(
            running, target, config_of(work, name), workload, run_id=run_id, command="bench/gpu/quant_speed.py",
            cut_s=40.0, workers=workers,
        )  # fmt: skip
    except PowerbandError as error:
        note(args.out, what="measured", format=name, load=load, error=error.message)
        return
    write_run(work / "runs" / run_id, run)
    metrics = run.metrics()
    note(
        args.out, what="measured", format=name, load=load, run_id=run_id, figures=figures(metrics),
        seconds=metrics.duration_s, completed=metrics.completed, errors=metrics.errors, unusable=unusable(run),
    )  # fmt: skip


def warming(workload: Workload) -> Workload:
    width = workload.concurrency or 1
    short = [
        msgspec.structs.replace(
            request,
            input_tokens=min(request.input_tokens, WARM_INPUT_TOKENS // width),
            output_tokens=min(request.output_tokens, WARM_OUTPUT_TOKENS),
        )
        for request in workload.requests[: max(width, 2)]
    ]
    return msgspec.structs.replace(workload, requests=tuple(short), source="warm-up", seed=workload.seed + 1)


def unusable(run: Run) -> str:
    """Why the run says nothing about the engine; empty where it does."""
    if isinstance(run.client, ClientCheck) and run.client.verdict == "limited":
        return f"client-limited: {run.client.reason}"
    if isinstance(run.contention, Contention) and run.contention.contended:
        return f"contended: {run.contention.reason}"
    return ""


def figures(metrics: Metrics) -> dict[str, float]:
    found = {"output_tokens_per_s": metrics.output_tokens_per_s}
    for name in ("ttft_s", "tpot_s"):
        one = getattr(metrics, name)
        if isinstance(one, Distribution):
            stem = name.removesuffix("_s")
            found |= {f"{stem}_mean_s": one.mean, f"{stem}_p50_s": one.p50, f"{stem}_p99_s": one.p99}
    return found


def note(out: Path, **row: Any) -> None:
    """One more line of the results, and on the screen."""
    with (out / "quant-speed.jsonl").open("ab") as file:
        file.write(msgspec.json.encode({**row, "at": round(time.time(), 1)}) + b"\n")
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
    for key in ("intervals", "figures"):
        if isinstance(shown.get(key), dict):
            shown[key] = {name: f"{value:.4g}" for name, value in row[key].items()} if key == "figures" else "..."
    print(" ".join(f"{key}={value}" for key, value in shown.items()), flush=True)


def read_rows(out: Path) -> list[dict[str, Any]]:
    path = out / "quant-speed.jsonl"
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.is_file() else []


def draw(out: Path) -> str:
    """Predicted and measured for every figure, and how often the 90 % intervals held."""
    rows = read_rows(out)
    said = {(row["by"], row["format"], row["load"]): row for row in rows if row["what"] == "predicted"}
    seen = {(row["format"], row["load"]): row for row in rows if row["what"] == "measured"}
    lines = [line for row in rows if row["what"] == "start" for line in started(row)]
    held: list[bool] = []
    for name, load in dict.fromkeys(key[1:] for key in said):
        found = seen.get((name, load), {})
        lines.append(f"{name}, {load}: {state(found)}")
        for figure in FIGURES:
            lines.append(draw_figure(figure, [said.get((by, name, load)) for by in BYS], found, held))
    if held:
        lines.append(f"the datasheet's 90 % intervals held {sum(held)} of {len(held)} times")
    return "\n".join(lines) + "\n"


def started(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [f"{row['format']}: did not start ({row['seconds']:.0f} s): {row['error']}", *row["tail"]]
    return [f"{row['format']}: vLLM {row['version']} up in {row['seconds']:.0f} s", *(f"  {x}" for x in row["log"])]


def state(row: dict[str, Any]) -> str:
    if not row:
        return "not measured"
    if "error" in row:
        return f"failed: {row['error']}"
    return (
        f"{row['completed']} requests in {row['seconds']:.1f} s, {row['errors']} errors; {row['unusable'] or 'usable'}"
    )


def draw_figure(figure: str, said: list[dict[str, Any] | None], seen: dict[str, Any], held: list[bool]) -> str:
    scale = 1.0 if figure == "output_tokens_per_s" else 1e3
    label = figure if scale == 1 else figure.removesuffix("_s") + " ms"
    datasheet, table = ((one or {}).get("figures", {}).get(figure) for one in said)
    interval = (said[0] or {}).get("intervals", {}).get(figure)
    value = seen.get("figures", {}).get(figure)
    shown = f"{label:<22}{_number(datasheet, scale):>10}"
    if interval:
        shown += f" [{_number(interval['low'], scale)}, {_number(interval['high'], scale)}]"
    shown = f"{shown:<56}table {_number(table, scale):>9}   measured {_number(value, scale):>9}"
    if value and datasheet:
        shown += f"   x{value / datasheet:.2f}"
        if interval:
            held.append(interval["low"] <= value <= interval["high"])
            shown += "" if held[-1] else "  MISSED"
    return f"  {shown}"


def _number(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{scale * value:,.2f}"


def calibrated(out: Path, device: str) -> str:
    """Quantised formats predicted from the runs of bf16 alone: what calibration carries over to other weights."""
    from powerband.simulate.calibrate import fit_step_time

    work = out / "work"
    seen = [row for row in read_rows(out) if row["what"] == "measured" and "run_id" in row]
    folders = [work / "runs" / row["run_id"] for row in seen if row["format"] == "bf16"]
    runs = [read_run(folder) for folder in folders if folder.is_dir()]
    if not runs:
        return "the runs of bf16 are not here: nothing is calibrated\n"
    fitted = fit_step_time(runs, step_of(work, device, "bf16", "datasheet"))
    lines = [
        f"calibrated by {len(runs)} runs of bf16: measured over predicted, by datasheet terms and the table's costs"
    ]
    held: list[bool] = []
    for row in seen:
        told = [predict(work, device, row["format"], row["load"], step_of(work, device, row["format"], by, fitted))
                for by in BYS]  # fmt: skip
        cells = []
        for figure in ("ttft_p50_s", "tpot_p50_s", "output_tokens_per_s"):
            value = row["figures"].get(figure, 0.0)
            cells.append(" ".join([figure, *(f"{value / one['figures'][figure]:.2f}" for one in told)]))
            ends = told[0]["intervals"][figure]
            if row["format"] != "bf16":
                held.append(ends["low"] <= value <= ends["high"])
        lines.append(f"  {row['format']:<6}{row['load']:<15}{'   '.join(cells)}")
    return "\n".join([*lines, f"  intervals of the quantised formats held {sum(held)} of {len(held)} times"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
