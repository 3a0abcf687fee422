"""Plant a cause in an engine, run traffic through a real socket, and count what locate says.

    python bench/locate_confusion.py --seeds 5 --rows rows.jsonl --out docs/reference/locate-accuracy.md

The fake engine serves known step times, so the planted cause is certain. Every run is short (about 10 s). Rows are
appended to the file and those that are there are not run again, so a stopped bench goes on where it was.
"""

import argparse
import dataclasses
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from powerband.engines.fake import Fake
from powerband.locate.diagnose import diagnose
from powerband.measure import measure
from powerband.records.config import EngineConfig
from powerband.records.run import ClientCheck, Contention
from powerband.records.workload import RequestSpec, Workload

NS = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Case:
    """A cause, the engine settings that plant it, and the traffic under which it dominates."""

    cause: str
    why: str
    engine: dict[str, Any]
    rate_per_s: float
    seconds: float = 9.0
    prompt: tuple[int, int] = (10, 40)
    answer: tuple[int, int] = (20, 60)
    long_prompt: tuple[float, int] = (0.0, 0)
    prefix_tokens: int = 0
    neighbours: int = 0  # busy processes beside the engine


# The rates follow from the engine's arithmetic: a step of 10 ms + 0.5 ms a sequence, 40 tokens an answer.
CASES = (
    Case("no_batching", "one slot", {"slots": 1}, 6),
    Case("queueing", "3 slots, offered twice what they serve", {"slots": 3}, 14),
    Case("static_batching", "a batch of 4 is held until its longest answer ends",
         {"slots": 4, "static": True}, 8, answer=(5, 120)),
    Case("kv_pressure", "a KV pool of 900 tokens, preempting (vLLM's names)",
         {"slots": 16, "kv_tokens": 900, "dialect": "vllm"}, 14, prompt=(100, 300)),
    Case("kv_pressure", "a KV pool of 900 tokens, queueing (llama.cpp's names: no KV gauge)",
         {"slots": 16, "kv_tokens": 900, "kv_policy": "queue"}, 14, prompt=(100, 300)),
    Case("tokenizer_bound", "200 ms of serial host work a request", {"slots": 16, "tokenizer_ms": 200.0}, 8),
    Case("idle_no_work", "1 request/s for an engine that bears 50", {"slots": 8}, 1, seconds=15, answer=(10, 20)),
    Case("memory_bandwidth_bound", "steps hardly grow with the sequences",
         {"slots": 64, "step_ms": 15.0, "step_ms_per_seq": 0.1}, 5, answer=(40, 120)),
    Case("compute_bound", "steps grow with the sequences",
         {"slots": 64, "step_ms": 1.0, "step_ms_per_seq": 3.0}, 4, answer=(40, 120)),
    Case("compute_bound", "prompts of 600 tokens at 3,000 tokens/s and short answers",
         {"slots": 64, "prefill_tokens_per_s": 3000.0}, 4, prompt=(500, 700), answer=(2, 6)),
    Case("head_of_line_blocking", "one prompt in 16 is of 3,000 tokens, the rest of 25, in chunks of 512",
         {"slots": 64, "step_ms": 5.0}, 6, answer=(5, 15), long_prompt=(0.06, 3000), seconds=14),
    Case("prefix_cache_miss", "600 shared prompt tokens, computed anew each time",
         {"slots": 64, "prefill_tokens_per_s": 4000.0}, 4, answer=(5, 15), prefix_tokens=600),
)  # fmt: skip


def make_workload(case: Case, seed: int) -> Workload:
    """Poisson arrivals over the window, uniform lengths."""
    dice = random.Random(seed)
    now, requests = 0.0, []
    while True:
        now += dice.expovariate(case.rate_per_s)
        if now > case.seconds:
            break
        tokens = case.long_prompt[1] if dice.random() < case.long_prompt[0] else dice.randint(*case.prompt)
        requests.append(
            RequestSpec(
                offset_ns=round(now * NS),
                input_tokens=tokens + case.prefix_tokens,
                output_tokens=dice.randint(*case.answer),
                prefix_id=dice.randrange(3) if case.prefix_tokens else None,
                prefix_tokens=case.prefix_tokens,
            )
        )
    return Workload(requests=tuple(requests), source=f"planted {case.cause}", seed=seed)


class Row(msgspec.Struct, frozen=True):
    """One run: what was planted, what was said, and whether the run could be used at all."""

    case: int
    seed: int
    verdict: str
    reason: str
    findings: list[tuple[str, float]]
    usable: str


def run_case(number: int, seed: int) -> Row:
    """Measure one planted run and diagnose it."""
    case = CASES[number]
    config = EngineConfig(engine="fake", model="fake", knobs=dict(case.engine))
    with tempfile.TemporaryDirectory() as folder:
        run = measure(
            Fake(),
            config,
            make_workload(case, seed),
            run_id=f"{case.cause}-{seed}",
            folder=Path(folder),
            command="bench",
            cut_s=case.seconds + 4,
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
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--case", type=int, help="only this row of CASES, from 0")
    parser.add_argument("--rows", type=Path, default=Path("locate-rows.jsonl"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = read_rows(args.rows)
    done = {(row.case, row.seed) for row in rows}
    for number, case in enumerate(CASES):
        for seed in range(1, args.seeds + 1):
            if args.case not in (None, number) or (number, seed) in done:
                continue
            row = run_case(number, seed)
            rows.append(row)
            with args.rows.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
            mark = "right" if row.verdict == case.cause else row.verdict
            print(f"{number:>2} {case.cause:<24} seed {seed} {mark:<24} {row.usable}", flush=True)
            if row.verdict != case.cause:
                print(f"    {row.reason}\n    {row.findings}", flush=True)
    if args.out:
        args.out.write_text(HEAD + table(rows))
    return 0


def read_rows(path: Path) -> list[Row]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


HEAD = """# How often locate is right

A cause is planted in the fake engine (a real HTTP server with known step times), traffic goes through a real socket,
and `locate` sees what it would see of any engine: request timings, /metrics every 0.5 s, the host. Made by
`python bench/locate_confusion.py`, which says what is planted and how. The same on a real engine:
[vLLM on an H200](locate-accuracy-vllm.md).

"""


def table(rows: list[Row], cases: tuple[Case, ...] = CASES) -> str:
    """The confusion table and every miss, as Markdown; runs on a busy host are counted and not judged."""
    judged = [row for row in rows if row.usable == "ok" or cases[row.case].neighbours]
    decided = [row for row in judged if row.verdict != "undecided" or cases[row.case].cause == "undecided"]
    right = sum(cases[row.case].cause == row.verdict for row in decided)
    lines = [
        f"**{right} of {len(decided)} decided runs right; {len(judged) - len(decided)} of {len(judged)} undecided.** "
        + f"{len(rows) - len(judged)} more runs were left out because the host was busy or the client was the limit.",
        "",
        "| planted | how | verdicts (runs) |",
        "| --- | --- | --- |",
    ]
    for number, case in enumerate(cases):
        verdicts = Counter(row.verdict for row in judged if row.case == number)
        if verdicts:
            said = ", ".join(f"{name} {count}" for name, count in verdicts.most_common())
            lines.append(f"| {case.cause} | {case.why} | {said} |")
    wrong = [row for row in judged if row.verdict != cases[row.case].cause]
    lines += ["", "Every miss:", ""]
    lines += [
        f"* planted {cases[row.case].cause} ({cases[row.case].why}), seed {row.seed}: said {row.verdict}. {row.reason}."
        for row in wrong
    ] or ["None in these runs."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
