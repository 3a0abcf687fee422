"""Judge the kept runs of planted_vllm.py with the rules as they are now, and write the page; needs no card.

    python bench/gpu/planted_page.py results results2 --out docs/reference/locate-accuracy-vllm.md

Each folder is what a call of planted_vllm.py left: runs.tar.gz, planted-vllm.jsonl, perhaps traces. The models are the
shapes of planted_vllm.py, written again from their config.json.
"""

import argparse
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
from planted_vllm import BITES, FREE, PLANTS, SERVERS, SHAPES, Plant, bit, effect_of
from shapes import write_model

from powerband.account.ledger import compute_ledger
from powerband.locate.diagnose import diagnose
from powerband.locate.timeline import diagnose_timeline
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.kineto import read_kineto
from powerband.records.finding import Diagnosis
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.run import ClientCheck, Contention, Run
from powerband.records.value import known
from powerband.stores.run_dir import read_run

TRACES = {
    "transformers-decode.json.gz": ("native Transformers decode, 1B shape, eager, one sequence", "launch_bound"),
    "vllm-decode.json.gz": ("vLLM decode, 8B shape, full graphs, one sequence", "memory_bandwidth_bound"),
}
HEAD = """# How often locate is right on vLLM

Causes planted in vLLM 0.26 on one NVIDIA H200 (shapes of Llama-3.2-1B and Qwen3-8B with dummy weights in bf16), by a
setting or by the load. Made by `bench/gpu/profile.sh`, `planted_vllm.py` and `planted_page.py` beside it. The runs were
taken once, on several machines, and are judged twice: when they were taken, and with the rules as they are now.

Two rules were changed after a miss, so what missed then is no test of them. Of the runs of head-of-line blocking, seeds
1, 2 and 5 were called compute-bound: short answers that end together looked like a static batch although the engine's
own queue was empty. The vLLM trace was called launch-bound, for gaps that lie in its prompt's step (no graphs) and that
recording widens. Seeds from 6 on were taken after these changes; rules that came later (room in a step, pauses, a card
that idles) changed no verdict here. What was planted is certain by construction, but for a plant that hangs on the
host: see below.

"""
WEAK = f"""## A plant that hangs on the host

Confining a server to one core slows it down only where one core is too little for it, a matter of the host. So such a
plant counts only where it is seen to bite: the mean time between tokens has to be at least {BITES:g} times that of the
same load on the same server unconfined, beside it. Below that most of that time is not the plant's, and another answer
may be the right one. Runs that did not bite count neither way above, nor do seeds 1 to 10, which have no such run
beside them. All are listed. The call that took seeds 11 and 12 ended early: the client crashed while it listed
processes.

What is known of these: on the host of seeds 1 to 4 (16 cores) the server used up its core, and the card ran kernels for
half to two thirds of the time. On the hosts of seeds 5 to 10 (64 cores, faster ones) it used two thirds to nine tenths
of its core, and nothing came later for it: with seeds 6 to 10, decode steps took 5.4 ms, and first tokens came after 29
to 50 ms in the median, as they did unconfined on the same machine in the same hour (29 to 53 ms, the short prompts of
head-of-line blocking). With seeds 11 and 12 (32 cores) the run beside them says it: confined and free are the same. So
`memory_bandwidth_bound` was the right answer there. The same cause is planted for certain by more processes than one
core can carry and steps of a millisecond (`streams`).

"""


class Said(msgspec.Struct):
    """A verdict; the fields of a row of planted-vllm.jsonl that are needed here."""

    cause: str
    seed: int
    verdict: str
    reason: str
    key: str = ""
    effect: float | None = None
    usable: str = "ok"


@dataclass(frozen=True)
class Judged:
    """A run judged twice; once where the raw run was lost (``run`` None)."""

    plant: Plant
    run: Run | None
    then: Said
    now: Said
    busy: float | None
    effect: float | None

    @property
    def name(self) -> str:
        return f"{self.plant.key}-{self.then.seed}" + ("" if self.run else " (its raw run was lost: not judged again)")

    @property
    def counts(self) -> bool:
        return bit(self.plant, self.effect) is True


def judge(run: Run, plant: Plant, folder: Path, device: str) -> Diagnosis:
    shape, _ = SERVERS[plant.server]
    model, spec = read_model(str(folder / shape)), read_device(device)
    config = msgspec.structs.replace(run.config, model=str(folder / shape))
    return diagnose(run, ledger=compute_ledger(model, spec, config, remedies=False), model=model, device=spec)


def usable(one: Judged) -> bool:
    run = one.run
    if run is None:
        return one.then.usable == "ok"
    contended = isinstance(run.contention, Contention) and run.contention.contended
    return not contended and not (isinstance(run.client, ClientCheck) and run.client.verdict == "limited")


def table(found: list[Judged]) -> str:
    used = [one for one in found if usable(one)]
    sure = [one for one in used if one.counts]
    fresh = [one for one in sure if one.then.seed > 5]
    lines = [
        f"**When taken: {score(one.then for one in sure)}; of these, taken after the rules were changed: "
        f"{score(one.then for one in fresh)}. With the rules as they are now: {score(one.now for one in sure)}.** "
        f"{len(used) - len(sure)} more runs are of a plant that did not bite or may not have (below; with these: "
        f"{score(one.now for one in used)}); {len(found) - len(used)} were left out because the host was busy or the "
        "client was the limit.",
        "",
        "| planted | how | said when taken (runs) | with the rules as they are now |",
        "| --- | --- | --- | --- |",
    ]
    for plant in sorted(PLANTS, key=lambda plant: next(k for k, one in enumerate(PLANTS) if one.cause == plant.cause)):
        mine = [one for one in sure if one.plant is plant]
        lines.append(f"| {plant.cause} | {plant.why} | {counted(one.then for one in mine)} | "
                     f"{counted(one.now for one in mine)} |")  # fmt: skip
    lines += ["", "Every miss:", ""]
    missed = [f"* {one.name}, when taken: {said}." for one in sure if (said := miss(one.plant, one.then))]
    missed += [f"* {one.name}, now: {said}." for one in sure if (said := miss(one.plant, one.now))]
    return "\n".join([*lines, *(missed or ["None."]), ""])


def weak_table(found: list[Judged]) -> str:
    """Every confined run, with what confining cost."""
    lines = [
        "| run | time between tokens, times unconfined | cores used of 1 | card busy | said now |",
        "| --- " * 5 + "|",
    ]
    for one in found:
        if one.plant.starved and usable(one):
            effect = "not measured" if one.effect is None else f"{one.effect:.2f}" + (", bit" if one.counts else "")
            readings = one.run.host_samples if one.run else ()
            cores = [value for sample in readings if (value := known(sample.engine_cores)) is not None]
            used = f"{median(cores):.2f}" if cores else "-"
            busy = "-" if one.busy is None else f"{one.busy:.0%}"
            lines.append(f"| {one.name} | {effect} | {used} | {busy} | {one.now.verdict} |")
    return WEAK + "\n".join([*lines, ""])


def score(said: Iterable[Said]) -> str:
    rows = list(said)
    decided = [one for one in rows if one.verdict != "undecided"]
    right = sum(one.verdict == one.cause for one in decided)
    return f"{right} of {len(decided)} decided runs right, {len(rows) - len(decided)} of {len(rows)} undecided"


def counted(said: Iterable[Said]) -> str:
    verdicts = Counter(one.verdict for one in said)
    return ", ".join(f"{name} {count}" for name, count in verdicts.most_common()) or "none that counts"


def miss(plant: Plant, said: Said) -> str:
    return "" if said.verdict == plant.cause else f"said {said.verdict}. {said.reason}"


def read_results(results: Path, shapes: Path, device: str) -> list[Judged]:
    """Every run of a results folder that has a row, judged again."""
    rows = [msgspec.json.decode(line, type=Said) for line in (results / "planted-vllm.jsonl").read_bytes().splitlines()]
    packed = results / "runs.tar.gz"
    found = []
    with tempfile.TemporaryDirectory() as folder:
        if packed.is_file():
            with tarfile.open(packed) as archive:
                archive.extractall(folder, filter="data")
        for then in rows:
            found.append(judge_again(then, Path(folder) / "runs", shapes, device))
            print(f"{found[-1].name:<28} {found[-1].now.verdict:<24} {found[-1].now.reason}")
    return found


def judge_again(then: Said, runs: Path, shapes: Path, device: str) -> Judged:
    """With the rules as they are now; a row whose raw run is not there keeps what was said."""
    plant = next(plant for plant in PLANTS if plant.key == (then.key or then.cause))
    path = runs / f"{plant.key}-{then.seed}"
    if not path.is_dir():
        return Judged(plant, None, then, then, None, then.effect)
    run, beside = read_run(path), path.with_name(path.name + FREE)
    effect = effect_of(run, read_run(beside)) if beside.is_dir() else None
    said = judge(run, plant, shapes, device)
    return Judged(plant, run, then, Said(then.cause, then.seed, said.verdict, said.reason), said.gpu_busy_ratio, effect)


def traces(results: list[Path], model: ModelSpec, device: DeviceSpec) -> str:
    lines = ["## Traces", "", "| trace | expected | said | card busy | why |", "| --- | --- | --- | --- | --- |"]
    for name, (what, expected) in TRACES.items():
        path = next((one / name for one in results if (one / name).is_file()), None)
        if path is None:
            lines.append(f"| {what} | {expected} | not taken | - | - |")
            continue
        found = diagnose_timeline(read_kineto(path), model=model, device=device)
        lines.append(f"| {what} | {expected} | {found.verdict} | {found.gpu_busy_ratio:.1%} | {found.reason} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="folders that planted_vllm.py wrote")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shapes = Path(folder)
        for shape, config in SHAPES.items():
            write_model(shapes / shape, config)
        found = [one for results in args.results for one in read_results(results, shapes, args.device)]
        model = read_model(str(shapes / "8b"))
    page = HEAD + table(found) + "\n" + weak_table(found) + "\n" + traces(args.results, model, read_device(args.device))
    if args.out:
        args.out.write_text(page)
    print(score(one.now for one in found if one.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
