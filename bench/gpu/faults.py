"""Faults of a real vLLM on one card: each has to end as a failed trial that names its cause, and the loop goes on.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH; its python also has torch
    PYTHONPATH=src:bench/gpu:$PYTHONPATH python3 bench/gpu/faults.py --device h200 --out results

Needs no model hub: a small shape with dummy weights. Each fault is a session of its own in a process of its own, as one
that uses powerband would have it: the faulty trial, then a healthy one. They run beside each other where they cannot
disturb each other; what takes the whole card runs before the rest or after it. Takes five to six minutes.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from shapes import LLAMA, write_model

from powerband.account.ledger import compute_ledger
from powerband.engines.vllm import Vllm
from powerband.evaluate import Trials
from powerband.load.target import Progress
from powerband.measure import OnProgress
from powerband.probes.cards import read_cards
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig, Value
from powerband.records.errors import PowerbandError
from powerband.records.run import Trial
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.sqlite import Journal

GIB, SECOND = 1 << 30, 1_000_000_000
# The shape of Llama-3.2-1B with a small vocabulary; the same in a format that it does not run; and one beyond the card.
SMALL: dict[str, Any] = {
    **LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 8192,
}  # fmt: skip
FP_QUANT = {
    "quant_method": "fp_quant", "hadamard_group_size": 128, "forward_dtype": "nvfp4", "forward_method": "abs_max",
    "modules_to_not_convert": [],
}  # fmt: skip
BIG = {**SMALL, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 100, "num_attention_heads": 64,
       "head_dim": 128}  # fmt: skip
SHAPES = {"small": SMALL, "fp-quant": {**SMALL, "quantization_config": FP_QUANT}, "beyond": BIG}
QUICK: dict[str, Value] = {
    "load_format": "dummy", "enforce_eager": True, "max_num_seqs": 32, "max_num_batched_tokens": 8192,
    "max_model_len": 8192,
}  # fmt: skip
SHARED: dict[str, Value] = {"kv_cache_memory_bytes": 4 * GIB, "gpu_memory_utilization": 0.1}  # beside others
MEASURED = ("done", "contended", "client_limited")  # of a healthy trial: it was served, on however busy a host
HOLDER = """
import sys, time, torch
kept = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda")]
gib = float(sys.argv[1])
if gib:
    kept.append(torch.empty(int(gib * (1 << 30)), dtype=torch.uint8, device="cuda"))
print("ready", flush=True)
if gib or not sys.stdin.readline():
    sys.stdin.read()
    sys.exit()
until = time.monotonic() + 30
while time.monotonic() < until:
    for size in (1 << 30, 1 << 26, 1 << 22):
        try:
            while True:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except RuntimeError:
            pass
    time.sleep(0.02)
"""


@dataclass
class Fault:
    """A faulty config, what is done to it, and the cause that has to be named."""

    shape: str
    knobs: dict[str, Value]
    expected: str
    fits: bool | None = True  # what the ledger has to say before the start; None: it cannot read such a model
    cut_s: float = 12.0
    workload: Workload | None = None
    strike: Callable[["Session"], None] | None = None  # once its requests have begun
    before: Callable[["Session"], None] | None = None
    healthy_first: bool = False


def small_load(count: int = 24, tokens: int = 16) -> Workload:
    spec = RequestSpec(offset_ns=0, input_tokens=16, output_tokens=tokens)
    return Workload(requests=(spec,) * count, source="faults", concurrency=4)


def rising_load() -> Workload:
    """Short prompts for 8 s, then long ones all at once: their steps need more memory than any before, warm-up too."""
    short = [RequestSpec(offset_ns=k * SECOND // 4, input_tokens=16, output_tokens=8) for k in range(32)]
    long = [RequestSpec(offset_ns=8 * SECOND, input_tokens=7000, output_tokens=16)] * 40
    return Workload(requests=tuple(short + long), source="faults")


class Session:
    """One fault's session: its journal, its watcher, and every process that was seen below it."""

    def __init__(self, name: str, out: Path, device: str) -> None:
        self.name, self.out, self.device, self.fault = name, out, device, FAULTS[name]
        self.holder: subprocess.Popen[str] | None = None
        self.listener: socket.socket | None = None
        self.told = ""
        self.seen: dict[int, psutil.Process] = {}
        self._struck = False
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()
        journal = Journal(out / "home" / name)
        session = journal.begin("tune", "{}")
        self.trials = Trials(
            journal, session.session_id, Vllm(), slo=None, budget_s=600.0, command="bench", watcher=self
        )

    def _look(self) -> None:
        while not self._over.wait(0.3):
            for one in psutil.Process().children(recursive=True):
                if self.holder is None or one.pid != self.holder.pid:
                    self.seen.setdefault(one.pid, one)

    def started(self, key: str, config: EngineConfig) -> OnProgress:
        return (lambda _: None) if key != "faulty" else self.progress

    def finished(self, key: str, trial: Trial) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        if not self._struck and self.fault.strike is not None and progress.completed:
            self._struck = True
            self.fault.strike(self)

    def core(self) -> psutil.Process:
        below = psutil.Process().children(recursive=True)
        return next(one for one in below if one.is_running() and "EngineCore" in " ".join(one.cmdline()))

    def hold(self, gib: float) -> None:
        words = [sys.executable, "-c", HOLDER, str(gib)]
        self.holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout is not None
        self.holder.stdout.readline()

    def take_all(self) -> None:
        assert self.holder is not None
        assert self.holder.stdin is not None
        self.holder.stdin.write("go\n")
        self.holder.stdin.flush()

    def release(self) -> None:
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()
            self.holder = None
        if self.listener is not None:
            self.listener.close()

    def config(self, shape: str, knobs: dict[str, Value]) -> EngineConfig:
        return EngineConfig(engine="vllm", model=str(self.out / "models" / shape), knobs={**QUICK, **knobs})

    def run(self) -> dict[str, Any]:
        fault, began = self.fault, time.monotonic()
        if fault.healthy_first:
            self.trials.run("first", self.config("small", SHARED), small_load(), "tune", cut_s=20.0)
            self.trials.close()
        if fault.before is not None:
            fault.before(self)
        config = self.config(fault.shape, fault.knobs)
        fits, foretold = self.foretell(config)
        at = time.monotonic()
        status: str
        try:
            trial = self.trials.run("faulty", config, fault.workload or small_load(400, 64), "tune", cut_s=fault.cut_s)[
                0
            ]
            status, cause = trial.status, trial.cause or ""
        except PowerbandError as error:
            status, cause = type(error).__name__, error.message
        took_s = time.monotonic() - at
        (self.out / f"{self.name}.faulted").touch()
        expected = fault.expected.format(pid=self.holder.pid if self.holder else 0)
        # A trial that ended well keeps its engine for the next one of its settings: only a failed one leaves nothing.
        left = [] if status in MEASURED else self.left()
        self.release()
        after = self.trials.run("after", self.config("small", SHARED), small_load(), "tune", cut_s=20.0)[0]
        self.trials.close()
        self._over.set()
        left += self.left()
        right = status == "failed" and re.search(expected, cause) is not None
        right = right and fits is fault.fits and after.status in MEASURED and not left
        return {
            "fault": self.name, "expected": expected, "status": status, "cause": cause, "seconds": round(took_s, 1),
            "ledger": foretold, "after": after.status,
            "after_cause": after.cause, "left": left, "right": right,
            "all_s": round(time.monotonic() - began, 1),
        }  # fmt: skip

    def foretell(self, config: EngineConfig) -> tuple[bool | None, str]:
        """What the ledger says before anything is started."""
        try:
            ledger = compute_ledger(read_model(config.model), read_device(self.device), config, remedies=False)
        except PowerbandError as error:
            return None, error.message
        return ledger.fits, "fits" if ledger.fits else f"does not fit: {ledger.shortage}"

    def left(self) -> list[str]:
        """What the engines left: processes, or memory of the card in the name of one of them; 5 s to go."""
        until = time.monotonic() + 5.0
        while True:
            alive = [one for one in list(self.seen.values()) if lives(one)]
            held = [holder for card in read_cards() for holder in card.holders if holder.pid in self.seen]
            if time.monotonic() > until or not (alive or held):
                return [f"process {one.pid}" for one in alive] + [f"memory of pid {one.pid}" for one in held]
            time.sleep(0.2)


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def take_port(session: Session) -> None:
    session.listener = socket.socket()
    session.listener.bind(("127.0.0.1", 0))
    session.listener.listen()
    session.fault.knobs["port"] = int(session.listener.getsockname()[1])


FAULTS: dict[str, Fault] = {
    "a shape beyond the card": Fault(
        "beyond", {"gpu_memory_utilization": 0.9}, "died at start .*out of memory", fits=False
    ),
    "no room for the KV cache": Fault(
        "small", {"gpu_memory_utilization": 0.016}, "died at start .*no room for the KV cache", fits=False
    ),
    "a quantisation that vLLM has given up": Fault(
        "fp-quant", SHARED, "died at start .*unsupported quantisation: .*deprecated", fits=None
    ),
    "a quantisation without its checkpoint": Fault(
        "small", {**SHARED, "quantization": "awq"}, "died at start .*unsupported quantisation"
    ),
    "a killed core": Fault(
        "small", SHARED, "died|core died", strike=lambda session: os.kill(session.core().pid, signal.SIGKILL)
    ),
    "a hung core": Fault(
        "small", SHARED, "the engine hung: no token for", cut_s=13.0,
        strike=lambda session: os.kill(session.core().pid, signal.SIGSTOP),
    ),
    "a leftover that holds memory": Fault(
        "small", {"gpu_memory_utilization": 0.9}, r"card \d+ is not free.*pid {pid} \(", before=lambda one: one.hold(30)
    ),
    "the port is taken": Fault("small", dict(SHARED), "port .* is taken", before=take_port, healthy_first=True),
    "memory taken in a run": Fault(
        # FlashInfer's autotuning runs a step of the largest size behind the cache's allocation; PyTorch keeps that
        # step's memory, and no later one asks the driver for any.
        "small", {"gpu_memory_utilization": 0.5, "max_num_batched_tokens": 16384, "enable_flashinfer_autotune": False},
        "during the run.*out of memory",
        cut_s=25.0, workload=rising_load(), before=lambda one: one.hold(0), strike=Session.take_all,
    ),
}  # fmt: skip


@dataclass
class Bench:
    """Starts each session as a process: the first alone one, then the rest together, then the last alone one."""

    out: Path
    device: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self, name: str) -> None:
        words = [sys.executable, __file__, "--out", str(self.out), "--device", self.device, "--session", name]
        with (self.out / "sessions.log").open("ab") as log:
            self.running[name] = subprocess.Popen(words, stdout=log, stderr=log)
        print(f"{name}: begun", flush=True)

    def wait(self, name: str, until: float, marker: str = "") -> None:
        """Until the session has ended, or has the fault behind it where ``marker`` says so."""
        path = self.out / f"{name}{marker}"
        while self.running[name].poll() is None and time.monotonic() < until:
            if marker and path.exists():
                return
            time.sleep(0.2)

    def run(self, names: list[str], until: float) -> None:
        first, last = "a shape beyond the card", "memory taken in a run"
        if first in names:
            self.begin(first)
            self.wait(first, time.monotonic() + 150, ".faulted")
        together = [name for name in names if name not in (first, last)]
        for name in together:
            self.begin(name)
        for name in list(self.running):
            self.wait(name, until)
        if last in names:
            self.begin(last)
            self.wait(last, until)
        for name, process in self.running.items():
            if process.poll() is None:
                print(f"{name}: no end in time; ended", flush=True)
                process.terminate()
                process.wait(30)


def draw(out: Path, names: list[str]) -> str:
    rows = {row["fault"]: row for row in map(json.loads, (out / "faults.jsonl").read_text("utf-8").splitlines())}
    lines = []
    for name in names:
        row = rows.get(name)
        if row is None:
            lines.append(f"{name}: WRONG, no row: see sessions.log")
            continue
        lines.append(f"{name}: {'right' if row['right'] else 'WRONG'} ({row['status']} after {row['seconds']} s)")
        lines.append(f"    ledger before: {row['ledger']}")
        lines.append(f"    expected:      {row['expected']}")
        lines.append(f"    said:          {row['cause'].splitlines()[0][:300] if row['cause'] else '-'}")
        lines.append(
            f"    next trial:    {row['after']} {row['after_cause'] or ''}; left behind: {row['left'] or 'nothing'}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--only", default="", help="faults to try, separated by commas (default all)")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds (%(default)s)")
    parser.add_argument("--session", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    if args.session:
        row = Session(args.session, args.out, args.device).run()
        with (args.out / "faults.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return 0
    began = time.monotonic()
    names = args.only.split(",") if args.only else list(FAULTS)
    for shape, config in SHAPES.items():
        write_model(args.out / "models" / shape, config)
    free_before = [card.free_bytes for card in read_cards()]
    (args.out / "faults.jsonl").touch()
    Bench(args.out, args.device).run(names, began + args.limit)
    time.sleep(1.0)
    free_after = [card.free_bytes for card in read_cards()]
    lost = [round((before - after) / GIB, 2) for before, after in zip(free_before, free_after, strict=True)]
    table = draw(args.out, names) + f"\nmemory of the cards lost in all, GiB: {lost}; {time.monotonic() - began:.0f} s"
    (args.out / "table.txt").write_text(table + "\n", encoding="utf-8")
    print(table)
    with tarfile.open(args.out / "logs.tgz", "w:gz") as archive:
        for log in sorted(args.out.glob("home/**/engine.log")):
            archive.add(
                log, arcname="-".join([*log.relative_to(args.out / "home").parts[:1], log.parent.name]) + ".log"
            )
        archive.add(args.out / "sessions.log", arcname="sessions.log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
