"""TP 2 against DP 2 against one card, predicted before and measured after, on two cards of one node with vLLM.

    . /path/to/vllm-env                                   # whatever puts `vllm` on PATH
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/parallel.py --device h200 --out results

Two shapes (random weights) at two loads. Predictions are written down first. Then, shape by shape, the phases: TP 2
over both cards, and one server a card, of which both (DP 2) or one (one card) are used; no two servers ever share a
card. A profiler trace of TP 2 gives the communication share by itself, and a short all-reduce test the link's own
figures. NVLink multicast is never used. Phase ``custom`` is TP 2 again with vLLM's own all-reduce instead of NCCL's.
Decode runs in full CUDA graphs without torch.compile, which halves a start. Takes 7 to 9 minutes; ``--predict-only``
needs no card.
"""

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from shapes import MODELS, write_model

from powerband.account.ledger import compute_ledger
from powerband.engines.free_memory import wait_until_free
from powerband.engines.guard import descendants
from powerband.engines.process import HOST, ServerProcess, free_port, start_process
from powerband.load.runner import run_load
from powerband.load.target import Target
from powerband.load.traffic import build_workload
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.http import read_page
from powerband.records.config import EngineConfig
from powerband.records.errors import PowerbandError
from powerband.records.parallel import ParallelPlan, SplitFigures
from powerband.records.run import Predicted, Run
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.simulate.parallel import Memory, Question, plan_parallel
from powerband.simulate.predict import predict as simulate
from powerband.simulate.scheduler import limits_of
from powerband.simulate.step_time import predict_from_datasheet

SHAPES = {"mha-7b": MODELS["mha-7b"], "mha-13b": MODELS["llama-13b"]}
# Load: traffic and requests. The first leaves the cards idle between small steps, the second fills them.
LOADS = {"few": ("in=512,out=128,concurrency=8", 64), "many": ("in=512,out=128,concurrency=256", 768)}
KNOBS: dict[str, bool | int | float | str] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_model_len": 2048,
    "gpu_memory_utilization": 0.9,
}
GRAPHS: dict[str, Any] = {
    "mode": 0,
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "pass_config": {"fuse_allreduce_rms": False},
    "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256],
}
# Multicast over NVLink stays off; loopback is the only interface that ranks of one node need.
SAFE = {
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_HOST_IP": HOST,
    "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN", "PYTHONFAULTHANDLER": "1",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1",
}  # fmt: skip
PHASES = ("tp2", "dp2", "custom")
PATIENCE_S = 130.0
SIZES = [1 << power for power in range(13, 28, 2)]  # 8 KiB to 128 MiB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--phases", default=",".join(PHASES), help="in this order, for each shape (%(default)s)")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds; no measurement begins after that")
    parser.add_argument("--predict-only", action="store_true")
    parser.add_argument("--all-reduce-rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.all_reduce_rank is not None:
        return all_reduce_rank(args.all_reduce_rank, args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + args.budget
    shapes = [name for name in args.shapes.split(",") if name in SHAPES]
    folders = {name: write_model(args.out / "models" / name, SHAPES[name]) for name in shapes}
    plans = {(shape, load): predict(folders[shape], args.device, load) for shape in shapes for load in LOADS}
    alone = {(shape, load): predict_one_card(folders[shape], args.device, load) for shape, load in plans}
    said = {f"{shape}/{load}": plan for (shape, load), plan in plans.items()}
    save(args.out / "predicted.json", said | {f"{shape}/{load}/one card": one for (shape, load), one in alone.items()})
    runs: dict[str, dict[str, Any]] = {}
    if not args.predict_only:
        os.environ |= SAFE
        (args.out / "facts.txt").write_text(facts(), encoding="utf-8")
        all_reduce(args.out)
        for shape, phase in in_order(shapes, args.phases.split(",")):
            if time.monotonic() > until - 100:
                print(f"{shape} {phase}: left out, no time", flush=True)
                continue
            runs |= measure_phase(phase, shape, folders[shape], args.out, until)
            save(args.out / "measured.json", runs)
        pack_logs(args.out)
    table = draw(plans, alone, runs, args.out)
    (args.out / "table.txt").write_text(table, encoding="utf-8")
    print(table)
    return 0


def in_order(shapes: list[str], phases: list[str]) -> list[tuple[str, str]]:
    """Shape by shape; what is only nice to know comes last."""
    main = [(shape, phase) for shape in shapes for phase in phases if phase != "custom"]
    return [*main, *((shape, phase) for shape in shapes for phase in phases if phase == "custom")]


def pack_logs(out: Path) -> None:
    with tarfile.open(out / "logs.tgz", "w:gz") as archive:
        for log in sorted(out.glob("*.log")):
            archive.add(log, arcname=log.name)


def save(path: Path, document: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))


def workload_of(load: str) -> Workload:
    traffic, requests = LOADS[load]
    return build_workload(traffic, requests=requests, scale_lengths=None, scale_rate=None, seed=1)


def question_of(folder: Path, device_name: str, load: str) -> Question:
    model, device = read_model(str(folder)), read_device(device_name)

    def memory_of(config: EngineConfig, ranks: int) -> Memory:
        ledger = compute_ledger(model, device, config, count=ranks, remedies=False)
        return Memory(fits=ledger.fits, kv_tokens=ledger.capacity.kv_tokens, shortage=ledger.shortage)

    config = EngineConfig(engine="vllm", model=str(folder), knobs=KNOBS)
    return Question(model=model, device=device, config=config, cards=2, workload=workload_of(load), memory_of=memory_of)


def predict(folder: Path, device_name: str, load: str) -> ParallelPlan:
    question = question_of(folder, device_name, load)
    return plan_parallel(question, predict_from_datasheet(question.model, question.device, question.config))


def predict_one_card(folder: Path, device_name: str, load: str) -> Predicted:
    """The whole load on one card, without splitting anything."""
    one = question_of(folder, device_name, load)
    limits = limits_of(one.config, one.memory_of(one.config, 1).kv_tokens)
    step_time = predict_from_datasheet(one.model, one.device, one.config)
    return simulate(one.config, one.workload, step_time, limits, objective="output_tokens_per_s")


def facts() -> str:
    shown = []
    for words in (["nvidia-smi", "-L"], ["nvidia-smi", "topo", "-m"], ["nvidia-smi", "topo", "-p2p", "r"]):
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        shown.append(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}")
    return "\n".join(shown)


def all_reduce(out: Path) -> None:
    """Two ranks, each a process: NCCL's time by message size."""
    environment = os.environ | {"MASTER_ADDR": HOST, "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, __file__, "--out", str(out), "--all-reduce-rank"]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment | {"RANK": str(rank)}) for rank in (0, 1)]
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(timeout=90)
        rank.kill()


def all_reduce_rank(rank: int, out: Path) -> int:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    rows = []
    for size in SIZES:
        data = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
        for _ in range(10):
            dist.all_reduce(data)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(50):
            dist.all_reduce(data)
        end.record()
        torch.cuda.synchronize()
        rows.append({"bytes": size, "us": start.elapsed_time(end) * 1e3 / 50})
    if rank == 0:
        save(out / "all_reduce.json", rows)
    dist.destroy_process_group()
    return 0


def measure_phase(phase: str, shape: str, folder: Path, out: Path, until: float) -> dict[str, dict[str, Any]]:
    """The servers of one phase and shape, both loads, and for TP a trace; what fails is said and leaves no figures."""
    cards = [[0], [1]] if phase == "dp2" else [[0, 1]]
    servers: list[ServerProcess] = []
    ports: list[int] = []
    found: dict[str, dict[str, Any]] = {}
    try:
        wait_until_free(float(KNOBS["gpu_memory_utilization"]), 2)
        for place in cards:
            ports.append(free_port())
            servers.append(start(phase, shape, folder, place, ports[-1], out))
        patience_s = max(30.0, min(PATIENCE_S, until - 20 - time.monotonic()))
        # One after the other would be safer still; on cards of their own they do not see each other's memory.
        with ThreadPoolExecutor(len(servers)) as pool:
            up = list(pool.map(wait_up, servers, ports, [patience_s] * len(servers)))
        if all(up):
            found = measure_shape(phase, shape, folder, ports, until)
            if phase == "tp2" and time.monotonic() < until - 30:
                trace(ports[0], folder)
    except PowerbandError as error:
        print(f"{shape} {phase}: {error.message}", flush=True)
    finally:
        for server in servers:
            server.stop()
    return found


def start(phase: str, shape: str, folder: Path, cards: list[int], port: int, out: Path) -> ServerProcess:
    command = ["vllm", "serve", str(folder), "--load-format", "dummy", "--host", HOST, "--port", str(port)]
    for name, value in KNOBS.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    command += ["--compilation-config", msgspec.json.encode(GRAPHS).decode()]
    if len(cards) > 1:
        traces: dict[str, Any] = {"profiler": "torch", "torch_profiler_dir": str((out / f"trace-{shape}").resolve())}
        traces |= {"torch_profiler_with_stack": False, "ignore_frontend": True}
        command += ["--tensor-parallel-size", "2", "--profiler-config", msgspec.json.encode(traces).decode()]
        command += [] if phase == "custom" else ["--disable-custom-all-reduce"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if os.environ.get("CUDA_VISIBLE_DEVICES") else "01"
    environment = {**SAFE, "CUDA_VISIBLE_DEVICES": ",".join(visible[card] for card in cards)}
    log = out / f"{phase}-{shape}-{cards[0]}.log"
    return start_process(command, log=log, name=f"vllm {phase} {shape}", env=environment, grace_s=20.0)


def wait_up(server: ServerProcess, port: int, patience_s: float) -> bool:
    """Whether it answers in time; where it does not, its processes write their stacks and its last lines are shown."""
    began, name = time.monotonic(), server.log.stem
    while server.alive() and time.monotonic() - began < patience_s:
        with contextlib.suppress(PowerbandError):
            if read_page(f"http://{HOST}:{port}/health", timeout_s=2.0).status == 200:
                print(f"{name}: up in {time.monotonic() - began:.0f} s", flush=True)
                return True
        time.sleep(0.5)
    died = not server.alive()
    if not died:
        for pid in (*descendants(server.pid), server.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGABRT)  # PYTHONFAULTHANDLER: the stacks of all threads
        time.sleep(3.0)
    print(f"{name}: {'died' if died else 'no answer'} after {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(f"    {line[:220]}" for line in server.log_tail(15 if died else 60)), flush=True)
    return False


def measure_shape(phase: str, shape: str, folder: Path, ports: list[int], until: float) -> dict[str, dict[str, Any]]:
    splits = {
        "tp2": [("TP 2 x DP 1", ports)],
        "custom": [("TP 2 x DP 1, vLLM's all-reduce", ports)],
        "dp2": [("TP 1 x DP 2", ports), ("one card", ports[:1])],
    }[phase]
    tensor = 1 if phase == "dp2" else 2
    found = {}
    for load in LOADS:
        for split, used in splits:
            if time.monotonic() > until - 30:
                print(f"{shape} {load} {split}: left out, no time", flush=True)
                continue
            send_all(folder, used, "few", tensor, 8)  # warm-up
            runs = send_all(folder, used, load, tensor, None)
            found[f"{shape}/{load}/{split}"] = summary(runs)
            print(
                f"{shape} {load} {split}: {found[f'{shape}/{load}/{split}']['output_tokens_per_s']:,.0f} tok/s",
                flush=True,
            )
    return found


def send_all(folder: Path, ports: list[int], load: str, tensor: int, requests: int | None) -> list[Run]:
    """The load dealt to the servers in turn, one client process each, at the same time."""
    whole = workload_of(load)
    taken = whole.requests if requests is None else whole.requests[:requests]
    concurrency = math.ceil((whole.concurrency or 1) / len(ports))
    jobs = [
        (
            port,
            str(folder),
            tensor,
            msgspec.structs.replace(whole, requests=taken[n :: len(ports)], concurrency=concurrency),
        )
        for n, port in enumerate(ports)
    ]
    with ProcessPoolExecutor(len(jobs)) as pool:
        return [msgspec.json.decode(data, type=Run) for data in pool.map(send, *zip(*jobs, strict=True))]


def send(port: int, model: str, tensor: int, workload: Workload) -> bytes:
    target = Target(url=f"http://{HOST}:{port}", model=model, extra_body={"ignore_eos": True})
    loaded = run_load(target, workload, t0_ns=time.monotonic_ns(), deadline_s=120.0)
    config = EngineConfig(engine="vllm", model=model, knobs={**KNOBS, "tensor_parallel_size": tensor})
    run = Run(
        run_id=f"tp{tensor}-{port}-c{workload.concurrency}", basis="measured", config=config,
        effective=Missing(missing="not read"), workload=workload, traces=loaded.traces, end_ns=loaded.end_ns,
        client=loaded.client, notes=loaded.notes,
    )  # fmt: skip
    return msgspec.json.encode(run)


def summary(runs: list[Run]) -> dict[str, Any]:
    """All servers together; latencies are the mean of the servers' medians."""
    metrics = [run.metrics() for run in runs]
    tpot = [one.tpot_s.p50 for one in metrics if not isinstance(one.tpot_s, Missing)]
    ttft = [one.ttft_s.p50 for one in metrics if not isinstance(one.ttft_s, Missing)]
    return {
        "output_tokens_per_s": sum(one.output_tokens_per_s for one in metrics),
        "tpot_p50_s": sum(tpot) / len(tpot) if tpot else None,
        "ttft_p50_s": sum(ttft) / len(ttft) if ttft else None,
        "errors": sum(one.errors for one in metrics),
        "client": [run.client for run in runs],
        "runs": runs,
    }


def trace(port: int, folder: Path) -> None:
    """A few decode steps of eight sequences under the profiler."""
    url = f"http://{HOST}:{port}"
    try:
        read_page(url + "/start_profile", timeout_s=30, body={})
        whole = workload_of("few")
        short = tuple(msgspec.structs.replace(request, output_tokens=24) for request in whole.requests[:8])
        send(port, str(folder), 2, msgspec.structs.replace(whole, requests=short))
        read_page(url + "/stop_profile", timeout_s=60, body={})
    except PowerbandError as error:
        print(f"no trace of {folder.name}: {error.message}", flush=True)


def draw(
    plans: dict[tuple[str, str], ParallelPlan],
    alone: dict[tuple[str, str], Predicted],
    runs: dict[str, dict[str, Any]],
    out: Path,
) -> str:
    rows = [f"{'shape':<9}{'load':<6}{'split':<13}{'predicted tok/s':>30}{'measured':>10}{'TPOT ms':>16}{'share':>8}"]
    for (shape, load), plan in plans.items():
        for split in plan.splits:
            figures = split.figures
            if figures is None:
                continue
            mark = "*" if split.name == plan.chosen else " "
            seen = runs.get(f"{shape}/{load}/{split.name}")
            rows.append(
                f"{shape:<9}{load:<6}{split.name:<12}{mark}{_row(figures, seen)}{figures.communication.decode:>8.0%}"
            )
        one = _row(alone[shape, load], runs.get(f"{shape}/{load}/one card"))
        rows.append(f"{shape:<9}{load:<6}{'one card':<13}{one}")
        if (own := runs.get(f"{shape}/{load}/TP 2 x DP 1, vLLM's all-reduce")) is not None:
            rows.append(f"{shape:<9}{load:<6}{'TP 2, own':<13}{_tokens(own):>40}{'-> ' + _ms(own):>16}")
        rows.append(f"  {verdict(plan, {name: runs.get(f'{shape}/{load}/{name}') for name in SPLITS})}")
    return (
        "\n".join([*rows, "* chosen by the planner", *measured_shares(plans, runs, out), *all_reduce_rows(out)]) + "\n"
    )


def _row(figures: Predicted | SplitFigures, seen: dict[str, Any] | None) -> str:
    said = f"{figures.output_tokens_per_s:,.0f} [{figures.interval.low:,.0f}, {figures.interval.high:,.0f}]"
    tpot = f"{1e3 * (figures.tpot_p50_s or 0):.2f} -> {_ms(seen)}"
    return f"{said:>30}{_tokens(seen):>10}{tpot:>16}"


SPLITS = ("TP 2 x DP 1", "TP 1 x DP 2")


def verdict(plan: ParallelPlan, seen: dict[str, dict[str, Any] | None]) -> str:
    tokens = {name: one["output_tokens_per_s"] for name, one in seen.items() if one is not None}
    if len(tokens) < 2 or plan.chosen is None:
        return f"chosen {plan.chosen}; not measured"
    best = max(tokens, key=lambda name: tokens[name])
    ratio = tokens[plan.chosen] / max(value for name, value in tokens.items() if name != plan.chosen)
    return f"chosen {plan.chosen}: {ratio:.2f}x the other, {'right' if best == plan.chosen else 'WRONG'}"


def measured_shares(
    plans: dict[tuple[str, str], ParallelPlan], runs: dict[str, dict[str, Any]], out: Path
) -> list[str]:
    """The communication share by calibration on TP 2 and one card, and by the trace."""
    from powerband.locate.communication import communication_share
    from powerband.probes.kineto import read_kineto
    from powerband.simulate.calibrate import fit_step_time
    from powerband.simulate.communication import loosened
    from powerband.simulate.parallel import confirm, shares_of

    lines = []
    for (shape, load), plan in plans.items():
        pair = [runs.get(f"{shape}/{which}/{name}") for which in LOADS for name in ("TP 2 x DP 1", "one card")]
        measured = [run for one in pair if one is not None for run in one["runs"]]
        if len({run.config.knobs["tensor_parallel_size"] for run in measured}) == 2:
            question = question_of(out / "models" / shape, plan.device, load)
            prior = predict_from_datasheet(question.model, question.device, question.config)
            after = plan_parallel(question, fit_step_time(measured, loosened(prior)))
            for one in confirm(plan, after, shares_of(after), "runs").verdicts:
                lines.append(
                    f"{shape} {load}: share predicted {one.predicted:.0%}, by TP 2 and one card {one.measured:.0%} "
                    f"[{one.measured_interval.low:.0%}, {one.measured_interval.high:.0%}]: {one.verdict}"
                )
    for shape in {shape for shape, _ in plans}:
        for path in sorted((out / f"trace-{shape}").glob("*.json*"))[:1]:
            try:
                share, interval = communication_share(read_kineto(path))
            except PowerbandError as error:
                lines.append(f"{shape}: trace not read: {error.message}")
                continue
            lines.append(
                f"{shape}: share of busy time in a trace of 8 sequences {share:.0%} [{interval.low:.0%}, "
                f"{interval.high:.0%}]"
            )
    return lines


def all_reduce_rows(out: Path) -> list[str]:
    from powerband.simulate.all_reduce import all_reduce_s, link_cost

    path = out / "all_reduce.json"
    if not path.is_file():
        return []
    cost = link_cost(read_device("h200"))
    return ["all-reduce of 2 cards, us (model / NCCL, no graph):"] + [
        f"  {row['bytes'] / 1024:>9,.0f} KiB {1e6 * all_reduce_s(row['bytes'], 2, cost):8.1f} {row['us']:8.1f}"
        for row in msgspec.json.decode(path.read_bytes())
    ]


def _tokens(seen: dict[str, Any] | None) -> str:
    return "-" if seen is None else f"{seen['output_tokens_per_s']:,.0f}"


def _ms(seen: dict[str, Any] | None) -> str:
    return "-" if seen is None or seen["tpot_p50_s"] is None else f"{1e3 * seen['tpot_p50_s']:.2f}"


if __name__ == "__main__":
    sys.exit(main())
