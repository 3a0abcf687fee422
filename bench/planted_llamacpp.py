"""The same question on a real engine: plant causes in llama.cpp on a CPU and count what locate says.

    python bench/planted_llamacpp.py MODEL.gguf --seeds 5 --rows rows.jsonl --out table.md

Loads fit SmolLM2-135M on two cores (about 110 output tokens/s alone, 170 in eight slots, 320 prompt tokens/s). What is
planted is certain by construction (a setting, or busy processes beside the engine) except for decode at eight slots,
where a sweep says it: 106, 144 and 173 tokens/s at 1, 4 and 8 sequences, so most of a step grows with the sequences.
KV pressure is not planted: with one pool for all slots and more requests than fit, llama.cpp stood still. Nor is memory
bandwidth: two wide layers in 16 bits, the most memory for the least arithmetic, took 12 ms a step for one sequence and
52 for five, so that from two on arithmetic is the limit here.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from locate_confusion import Case, Row, make_workload, read_rows, table
from powerband.engines.llamacpp import LlamaCpp
from powerband.locate.diagnose import diagnose
from powerband.measure import measure
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError
from powerband.records.run import ClientCheck, Contention
from powerband.records.workload import Workload

CASES = (
    Case("no_batching", "one slot", {"n_parallel": 1}, 3.5, seconds=10),
    Case("queueing", "two slots, offered twice what they serve", {"n_parallel": 2}, 6, seconds=10),
    Case("static_batching", "cont_batching off: prompts enter when no slot is at work",
         {"n_parallel": 4, "cont_batching": False}, 5, seconds=12, answer=(5, 100)),
    Case("head_of_line_blocking", "one prompt in 10 is of 1,200 tokens, the rest of 25",
         {"n_parallel": 24}, 1.5, seconds=28, answer=(4, 12), long_prompt=(0.1, 1200)),
    Case("compute_bound", "answers of 60 tokens in 16 slots: a step grows with the sequences",
         {"n_parallel": 24}, 2.2, seconds=14, answer=(40, 80)),
    Case("compute_bound", "prompts of 350 tokens, answers of 4, just below what prefill bears",
         {"n_parallel": 24}, 0.75, seconds=24, prompt=(300, 400), answer=(2, 6)),
    Case("prefix_cache_miss", "300 shared prompt tokens with prompt caching off",
         {"n_parallel": 24, "cache_prompt": False, "cache_ram_mib": 0}, 0.75, seconds=20, answer=(3, 8),
         prefix_tokens=300),
    Case("idle_no_work", "one request in 2 s", {"n_parallel": 8}, 0.5, seconds=24, answer=(10, 20)),
    Case("undecided", "host contention: two processes that spin on the engine's cores",
         {"n_parallel": 8}, 2, seconds=12, neighbours=2),
)  # fmt: skip


LONGEST_S = 60.0  # of a neighbour
HEAD = """# How often locate is right on llama.cpp

Causes planted in llama.cpp's server with SmolLM2-135M (Q4_1) on a 2-core CPU, by a setting or by busy processes beside
the engine. Made by `python bench/planted_llamacpp.py MODEL.gguf`. `undecided` is the right answer where the host is
contended.

"""


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Busy processes beside the engine, orphans: a child of ours would count as the client. They end by themselves."""
    code = f"import time\nuntil = time.monotonic() + {LONGEST_S}\nwhile time.monotonic() < until: pass"
    start = ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, code]
    busy = [int(subprocess.run(start, stdout=subprocess.PIPE, check=True).stdout) for _ in range(count)]
    try:
        yield
    finally:
        for pid in busy:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def run_case(number: int, seed: int, model: str) -> Row:
    """Measure one planted run and diagnose it."""
    case = CASES[number]
    workload: Workload = make_workload(case, seed)
    engine = LlamaCpp()
    config = engine.complete(
        EngineConfig(engine="llamacpp", model=model, knobs=dict(case.engine)), workload, frozenset(case.engine)
    )
    with tempfile.TemporaryDirectory() as folder, neighbours(case.neighbours):
        run = measure(
            engine,
            config,
            workload,
            run_id=f"{case.cause}-{seed}",
            folder=Path(folder),
            command="bench",
            cut_s=case.seconds + 6,
        )
    found = diagnose(run)
    usable = "ok"
    if isinstance(run.client, ClientCheck) and run.client.verdict == "limited":
        usable = f"client-limited: {run.client.reason}"
    if isinstance(run.contention, Contention) and run.contention.contended:
        usable = f"contended: {run.contention.reason}"
    findings: list[tuple[str, float]] = [(finding.cause, round(finding.share, 3)) for finding in found.findings]
    return Row(number, seed, found.verdict, found.reason, findings, usable)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a .gguf file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--case", type=int, help="only this row of CASES, from 0")
    parser.add_argument("--rows", type=Path, default=Path("locate-llamacpp.jsonl"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = read_rows(args.rows)
    done = {(row.case, row.seed) for row in rows}
    for number, case in enumerate(CASES):
        for seed in range(1, args.seeds + 1):
            if args.case not in (None, number) or (number, seed) in done:
                continue
            try:
                row = run_case(number, seed, args.model)
            except EngineError as error:  # a run that broke is no verdict; it is tried again by the next call
                print(f"{number:>2} {case.cause:<24} seed {seed} failed: {error.message}", flush=True)
                continue
            rows.append(row)
            with args.rows.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
            mark = "right" if row.verdict == case.cause else row.verdict
            print(f"{number:>2} {case.cause:<24} seed {seed} {mark:<24} {row.usable}\n    {row.reason}", flush=True)
            print(f"    {row.findings}", flush=True)
    if args.out:
        args.out.write_text(HEAD + table(rows, CASES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
