"""Plant causes in vLLM on one card, take a trace of its decode, and count what locate says.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/planted_vllm.py --device h200 --out results --seeds 5

Needs no model hub: shapes with dummy weights (see shapes.py). Four servers start at once, since a start is slow
and an idle server disturbs nothing; each cause is a setting of one of them, or a load. Every run is kept, so that rules
can be tried on them later without a card. Whether few cores slow a server down depends on the host: such a plant runs
twice, free and confined, and counts only where confining cost at least half of the time between tokens.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
from shapes import LLAMA, MODELS, write_model

from powerband.account.ledger import compute_ledger
from powerband.engines.openai import read_settings
from powerband.engines.process import free_port, start_process, wait_ready
from powerband.engines.running import Running
from powerband.load.target import Target
from powerband.locate.diagnose import diagnose
from powerband.locate.timeline import diagnose_timeline
from powerband.measure import observe
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.kineto import read_kineto
from powerband.records.config import EngineConfig
from powerband.records.errors import PowerbandError
from powerband.records.run import ClientCheck, Contention, Run
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.run_dir import write_run
from powerband.warm_up import warm_up

NS = 1_000_000_000
# The shape of Llama-3.2-1B with a small vocabulary.
SMALL = {
    **LLAMA,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}
SHAPES = {"small": SMALL, "8b": MODELS["gqa-8b"]}
GIB = 1 << 30
# Times the time between tokens of the same load unconfined: from here on the plant made at least half of it.
BITES = 2.0
FREE = "-free"  # behind the name of the run beside a confined one
COMMON = {"max_model_len": 8192, "gpu_memory_utilization": 0.3, "enable_prefix_caching": False}
SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    # One step takes a whole prompt of 24,000 tokens, and whatever came meanwhile waits for it.
    "graphs": ("8b", {**COMMON, "kv_cache_memory_bytes": 16 * GIB, "max_num_seqs": 32, "max_model_len": 32768,
                      "max_num_batched_tokens": 32768}),
    "eager": ("small", {**COMMON, "kv_cache_memory_bytes": 4 * GIB, "max_num_seqs": 32, "enforce_eager": True}),
    "one": ("small", {**COMMON, "kv_cache_memory_bytes": 4 * GIB, "max_num_seqs": 1, "enforce_eager": True}),
    "full": ("small", {**COMMON, "kv_cache_memory_bytes": 4 * GIB, "max_num_seqs": 64, "enforce_eager": True,
                       "max_model_len": 2048, "num_gpu_blocks_override": 220}),
    # Steps of a millisecond and a token each for 48 streams, through five processes that one core has to carry.
    "streams": ("small", {**COMMON, "kv_cache_memory_bytes": 4 * GIB, "max_num_seqs": 64, "api_server_count": 4}),
}  # fmt: skip


@dataclass(frozen=True)
class Plant:
    """A cause, the server that has it, and the traffic under which it dominates; a closed loop where no rate is."""

    cause: str
    why: str
    server: str
    prompt: tuple[int, int]
    answer: tuple[int, int]
    requests: int
    rate_per_s: float | None = None
    cut_s: float = 12.0
    starved: bool = False
    concurrency: int = 1  # of the closed loop
    variant: str = ""  # where a cause is planted in two ways
    prefix_tokens: int = 0  # of one of three prefixes, before the prompt's own tokens
    long_prompt: tuple[int, int] | None = None  # every how many requests, and its tokens

    @property
    def key(self) -> str:
        return f"{self.cause}-{self.variant}" if self.variant else self.cause


PLANTS = (
    Plant("memory_bandwidth_bound", "8B in bf16 with CUDA graphs, one request at a time", "graphs",
          (60, 70), (80, 100), 8),
    Plant("compute_bound", "prompts of 4,000 tokens, answers of 3, one at a time (8B)", "graphs",
          (3900, 4100), (3, 3), 24),
    Plant("idle_no_work", "one request a second for a card that bears 50", "graphs", (50, 70), (10, 20), 6, 1.0),
    Plant("scheduler_bound", "the server confined to one core (taskset), 8 to 20 sequences (8B, graphs)", "graphs",
          (100, 150), (100, 140), 36, 9.0, starved=True),
    Plant("launch_bound", "1B, enforce_eager, one request at a time", "eager", (30, 40), (70, 90), 8),
    Plant("no_batching", "max_num_seqs=1 (1B)", "one", (30, 60), (40, 60), 20, 6.0),
    Plant("kv_pressure", "num_gpu_blocks_override=220: 3,520 tokens of cache (1B)", "full",
          (300, 500), (150, 250), 40, 10.0),
    Plant("queueing", "max_num_seqs=32, 160 requests within 1.6 s, several times what 32 seats serve (8B, graphs)",
          "graphs", (50, 70), (60, 80), 160, 100.0, cut_s=14.0),
    Plant("prefix_cache_miss", "three prefixes of 3,000 tokens in turn, prefix caching off, answers of 3 (8B)",
          "graphs", (80, 120), (3, 3), 36, prefix_tokens=3000),
    Plant("head_of_line_blocking", "a prompt of 24,000 tokens every 2 s in one step (max_num_batched_tokens=32768) "
          "among prompts of 30 tokens, 20 a second (8B)", "graphs", (25, 35), (2, 3), 140, 20.0,
          long_prompt=(40, 24000)),
    Plant("scheduler_bound", "the server and its 4 API processes confined to one core, 48 sequences (1B, graphs)",
          "streams", (30, 60), (700, 900), 48, cut_s=20.0, starved=True, concurrency=48, variant="streams"),
)  # fmt: skip


class Row(msgspec.Struct):
    """One run: what was planted, what was said, and whether the run could be used at all."""

    plant: int
    seed: int
    cause: str
    verdict: str
    reason: str
    findings: list[tuple[str, float]]
    usable: str
    notes: list[str]
    output_tokens_per_s: float | None
    key: str = ""
    effect: float | None = None  # of confining, see BITES


def make_workload(plant: Plant, seed: int) -> Workload:
    """Even arrivals with jitter, so that no seed is short of requests; uniform lengths."""
    dice = random.Random(seed)
    gap_s = 1 / plant.rate_per_s if plant.rate_per_s else 0.0
    requests = tuple(
        RequestSpec(
            offset_ns=round((k + dice.random()) * gap_s * NS),
            input_tokens=plant.prefix_tokens + prompt_tokens(plant, k, dice),
            output_tokens=dice.randint(*plant.answer),
            prefix_id=k % 3 if plant.prefix_tokens else None,
            prefix_tokens=plant.prefix_tokens,
        )
        for k in range(plant.requests)
    )
    closed = None if plant.rate_per_s else plant.concurrency
    return Workload(requests=requests, source=f"planted {plant.key}", seed=seed, concurrency=closed)


def prompt_tokens(plant: Plant, k: int, dice: random.Random) -> int:
    """Long prompts come in the middle of their period, so that short ones stand before and behind each."""
    if plant.long_prompt and k % plant.long_prompt[0] == plant.long_prompt[0] // 2:
        return plant.long_prompt[1]
    return dice.randint(*plant.prompt)


def start(name: str, out: Path, traces: Path) -> Running:
    """One server with dummy weights, up or an error."""
    shape, knobs = SERVERS[name]
    model, port = str(out / "models" / shape), free_port()
    command = ["vllm", "serve", model, "--load-format", "dummy", "--host", "127.0.0.1", "--port", str(port)]
    for knob, value in knobs.items():
        flag = "--" + knob.replace("_", "-")
        command += [flag] if value is True else [f"--no-{flag[2:]}"] if value is False else [flag, str(value)]
    if name in ("graphs", "streams"):  # for decode alone, without torch.compile: up in half the time
        sizes = [2**k for k in range(7) if 2**k <= knobs["max_num_seqs"]]
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        command += ["--compilation-config", json.dumps(graphs)]
    if name == "graphs":
        profiler = {"profiler": "torch", "torch_profiler_dir": str(traces), "torch_profiler_with_stack": False,
                    "ignore_frontend": True, "torch_profiler_dump_cuda_time_total": False}  # fmt: skip
        command += ["--profiler-config", json.dumps(profiler)]
    url, began = f"http://127.0.0.1:{port}", time.monotonic()
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = start_process(command, log=out / "logs" / f"{name}.log", name="vllm", env=environment, grace_s=15.0)
    wait_ready(process, url, 200.0, name=f"vllm ({name})")
    seconds = time.monotonic() - began
    print(f"{name}: up after {seconds:.0f} s", flush=True)
    return Running(
        url,
        model_id=model,
        version="vLLM",
        process=process,
        startup_s=seconds,
        read_effective=lambda: read_settings(url, "", dict(knobs)),
    )


@contextlib.contextmanager
def confined(processes: list[psutil.Process], cores: set[int]) -> Iterator[None]:
    """Every thread of the processes on these cores, and back on all when the block ends."""
    everything = os.sched_getaffinity(0)
    _set_affinity(processes, cores)
    try:
        yield
    finally:
        _set_affinity(processes, everything)


def _set_affinity(processes: list[psutil.Process], cores: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, cores)


def trace_decode(running: Running, traces: Path, out: Path) -> dict[str, Any]:
    """A few steps of batch-1 decode over the engine's own profiler endpoint, and the diagnosis of the trace."""

    def post(path: str, body: dict[str, Any] | None = None) -> None:
        data = json.dumps(body or {}).encode()
        request = urllib.request.Request(running.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    ask = {"model": running.model_id, "prompt": [5] * 64, "max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
    post("/v1/completions", ask)
    post("/start_profile")
    post("/v1/completions", ask)
    post("/stop_profile")
    deadline = time.monotonic() + 20
    while not (found := sorted(traces.rglob("*.json*"))) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(2.0)  # the file is written in pieces
    for path in found:
        print(f"trace {path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        try:
            diagnosis = diagnose_timeline(read_kineto(path))
        except PowerbandError as error:
            print(f"  {error.message}", flush=True)
            continue
        (out / "vllm-decode.json.gz").write_bytes(path.read_bytes())
        print(f"  {diagnosis.verdict}: {diagnosis.reason}", flush=True)
        return msgspec.to_builtins(diagnosis)  # type: ignore[no-any-return]
    return {"error": "no readable trace"}


def run_plant(number: int, seed: int, running: Running, out: Path, device: str, *, warm: bool) -> Row:
    plant = PLANTS[number]
    shape, knobs = SERVERS[plant.server]
    model, spec = read_model(str(out / "models" / shape)), read_device(device)
    config = EngineConfig(engine="vllm", model=str(out / "models" / shape), knobs={**knobs})
    target = Target(url=running.url, model=running.model_id, extra_body={"ignore_eos": True})
    workload = make_workload(plant, seed)
    if not warm:
        warm_up(running, target, workload)

    def take(name: str) -> Run:
        run = observe(running, target, config, workload, run_id=name, command="bench", cut_s=plant.cut_s)
        write_run(out / "runs" / name, run)
        return run

    name = f"{plant.key}-{seed}"
    if plant.starved:
        free = take(name + FREE)
        root = psutil.Process(running.pid)
        with confined([root, *root.children(recursive=True)], {min(os.sched_getaffinity(0))}):
            run = take(name)
    else:
        free, run = None, take(name)
    ledger = compute_ledger(model, spec, config, remedies=False)
    found = diagnose(run, ledger=ledger, model=model, device=spec)
    usable = "ok"
    if isinstance(run.client, ClientCheck) and run.client.verdict == "limited":
        usable = f"client-limited: {run.client.reason}"
    if isinstance(run.contention, Contention) and run.contention.contended:
        usable = f"contended: {run.contention.reason}"
    return Row(
        plant=number,
        seed=seed,
        cause=plant.cause,
        verdict=found.verdict,
        reason=found.reason,
        findings=[(finding.cause, round(finding.share, 3)) for finding in found.findings],
        usable=usable,
        notes=list(found.notes),
        output_tokens_per_s=run.metrics().output_tokens_per_s,
        key=plant.key,
        effect=None if free is None else effect_of(run, free),
    )


def effect_of(run: Run, free: Run) -> float | None:
    """Mean time between tokens of a confined run, times that of the same load unconfined; None where one has none."""
    slow, fast = run.metrics().tpot_s, free.metrics().tpot_s
    return None if isinstance(slow, Missing) or isinstance(fast, Missing) else slow.mean / fast.mean


def bit(plant: Plant, effect: float | None) -> bool | None:
    """Whether the plant was there to be found; None: not measured."""
    if not plant.starved:
        return True
    return None if effect is None else effect >= BITES


def start_all(names: set[str], out: Path, traces: Path) -> dict[str, Running]:
    """These servers at once; one that fails beside the others is started again alone."""
    running: dict[str, Running] = {}
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        tasks = {name: pool.submit(start, name, out, traces) for name in names}
    for name, task in tasks.items():
        running |= try_start(name, task.result)
    for name in names - running.keys():
        running |= try_start(name, lambda name=name: start(name, out, traces))  # type: ignore[misc]
    return running


def try_start(name: str, get: Callable[[], Running]) -> dict[str, Running]:
    try:
        return {name: get()}
    except PowerbandError as error:
        print(f"{name}: {error.message}\n  " + "\n  ".join(getattr(error, "log_tail", ())[-6:]), flush=True)
        return {}


def choose_runs(only: str | None, seeds: int) -> list[tuple[int, int]]:
    """(seed, number in PLANTS), seed by seed, so that a budget that runs out leaves every cause with as many.

    ``only`` is a list such as "queueing,kv_pressure:5,no_batching:2-4": all seeds, one, or some.
    """
    numbers = {plant.key: number for number, plant in enumerate(PLANTS)}
    runs = []
    for word in only.split(",") if only else numbers:
        cause, _, wanted = word.partition(":")
        if cause not in numbers:
            raise SystemExit(f"--only: no cause {cause}; there are {', '.join(numbers)}")
        first, _, last = (wanted or f"1-{seeds}").partition("-")
        runs += [(seed, numbers[cause]) for seed in range(int(first), int(last or first) + 1)]
    return sorted(runs)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", help="some causes, with seeds where not all: queueing,kv_pressure:5")
    parser.add_argument("--no-trace", action="store_true", help="take no trace of decode")
    parser.add_argument("--budget-s", type=float, default=300.0, help="no run is begun after this many seconds")
    return parser.parse_args()


def main() -> int:
    args = parse_options()
    runs = choose_runs(args.only, args.seeds)
    began = time.monotonic()
    work, traces = args.out / "work", args.out / "work" / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    for shape, config in SHAPES.items():
        write_model(work / "models" / shape, config)
    servers = start_all({PLANTS[number].server for _, number in runs}, work, traces.resolve())
    try:
        if "graphs" in servers and not args.no_trace:
            keep_trace(servers["graphs"], traces, args.out)
        warm: set[int] = set()  # one load of a kind compiles what all of its seeds need
        for seed, number in runs:
            server = servers.get(PLANTS[number].server)
            if server is not None and time.monotonic() - began < args.budget_s:
                try:
                    judge(run_plant(number, seed, server, work, args.device, warm=number in warm), args.out)
                    warm.add(number)
                    pack(work, args.out)  # each time: a client that is killed takes no run with it
                except PowerbandError as error:  # no row: a run that broke is no verdict
                    print(f"{PLANTS[number].cause} seed {seed}: {error.message}", flush=True)
    finally:
        for running in servers.values():
            running.stop()
        pack(work, args.out)
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)
    return 0


def pack(work: Path, out: Path) -> None:
    for name in ("runs", "logs"):
        if (work / name).is_dir():
            with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(work / name, arcname=name)


def keep_trace(running: Running, traces: Path, out: Path) -> None:
    try:
        diagnosis = trace_decode(running, traces, out)
    except OSError as error:
        diagnosis = {"error": f"no trace: {error}"}
        print(diagnosis, flush=True)
    (out / "vllm-decode.diagnosis.json").write_bytes(msgspec.json.encode(diagnosis))


def judge(row: Row, out: Path) -> None:
    with (out / "planted-vllm.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")
    mark = "right" if row.verdict == row.cause else row.verdict
    if not bit(PLANTS[row.plant], row.effect):
        mark += " (the plant did not bite)"
    print(f"{row.plant} {row.key:<24} seed {row.seed} {mark:<24} {row.usable}\n    {row.reason}", flush=True)
    if row.effect is not None:
        print(f"    confined: {row.effect:.2f} times the time between tokens", flush=True)
    print(f"    {row.findings} {row.output_tokens_per_s}\n    {row.notes[-1:]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
