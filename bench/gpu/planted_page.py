"""Judge the kept runs of planted_vllm.py with the rules as they are now, and write the page; needs no card.

    tar -xzf results/runs.tar.gz -C /tmp/kept
    python bench/gpu/planted_page.py /tmp/kept/runs --results results --out docs/reference/locate-accuracy-vllm.md

The models are the shapes of planted_vllm.py, written again from their config.json.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from planted_vllm import PLANTS, SERVERS, SHAPES, Plant
from shapes import write_model

from powerband.account.ledger import compute_ledger
from powerband.locate.diagnose import diagnose
from powerband.locate.timeline import diagnose_timeline
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.kineto import read_kineto
from powerband.records.config import EngineConfig
from powerband.records.finding import Diagnosis
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.run import ClientCheck, Contention, Run
from powerband.stores.run_dir import read_run

TRACES = {
    "transformers-decode.json.gz": ("native Transformers decode, 1B shape, eager, one sequence", "launch_bound"),
    "vllm-decode.json.gz": ("vLLM decode, 8B shape, full graphs, one sequence", "memory_bandwidth_bound"),
}
HEAD = """# How often locate is right on vLLM

Causes planted in vLLM 0.26 on one NVIDIA H200 (shapes of Llama-3.2-1B and Qwen3-8B with dummy weights in bf16), by a
setting or by the load. Made by `bench/gpu/profile.sh` and `bench/gpu/planted_page.py`; the runs were taken once and are
judged with the rules as they are now. What was planted is certain by construction; the starved server had 1 of 16
cores. The verdicts on the runs did not change since they were taken. The vLLM trace was called launch-bound at first,
for gaps that lie in its prompt's step (no graphs) and that recording widens: the rule for launch gaps was changed then.

"""


def judge(run: Run, plant: Plant, folder: Path, device: str) -> Diagnosis:
    shape, knobs = SERVERS[plant.server]
    model, spec = read_model(str(folder / shape)), read_device(device)
    config = EngineConfig(engine="vllm", model=str(folder / shape), knobs={**knobs})
    return diagnose(run, ledger=compute_ledger(model, spec, config, remedies=False), model=model, device=spec)


def usable(run: Run) -> bool:
    contended = isinstance(run.contention, Contention) and run.contention.contended
    return not contended and not (isinstance(run.client, ClientCheck) and run.client.verdict == "limited")


def table(found: list[tuple[Plant, Run, Diagnosis]]) -> str:
    used = [row for row in found if usable(row[1])]
    decided = [row for row in used if row[2].verdict != "undecided"]
    right = sum(plant.cause == said.verdict for plant, _, said in decided)
    lines = [
        f"**{right} of {len(decided)} decided runs right; {len(used) - len(decided)} of {len(used)} undecided.** "
        f"{len(found) - len(used)} more were left out because the host was busy or the client was the limit.",
        "",
        "| planted | how | verdicts (runs) |",
        "| --- | --- | --- |",
    ]
    for plant in PLANTS:
        verdicts = Counter(said.verdict for which, _, said in used if which is plant)
        shown = ", ".join(f"{name} {count}" for name, count in verdicts.most_common()) or "not run"
        lines.append(f"| {plant.cause} | {plant.why} | {shown} |")
    wrong = [row for row in used if row[0].cause != row[2].verdict]
    lines += ["", "Every miss:", ""]
    lines += [f"* {run.run_id}: said {said.verdict}. {said.reason}." for _, run, said in wrong] or ["None."]
    return "\n".join([*lines, ""])


def traces(results: Path, model: ModelSpec, device: DeviceSpec) -> str:
    lines = ["## Traces", "", "| trace | expected | said | card busy | why |", "| --- | --- | --- | --- | --- |"]
    for name, (what, expected) in TRACES.items():
        path = results / name
        if not path.is_file():
            lines.append(f"| {what} | {expected} | not taken | - | - |")
            continue
        found = diagnose_timeline(read_kineto(path), model=model, device=device)
        lines.append(f"| {what} | {expected} | {found.verdict} | {found.gpu_busy_ratio:.1%} | {found.reason} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="the folder that holds the traces")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for shape, config in SHAPES.items():
            write_model(Path(folder) / shape, config)
        for path in sorted(args.runs.iterdir()):
            plant = next((one for one in PLANTS if path.name.rpartition("-")[0] == one.cause), None)
            if plant is None:
                print(f"{path.name} is no planted run", file=sys.stderr)
                continue
            run = read_run(path)
            said = judge(run, plant, Path(folder), args.device)
            found.append((plant, run, said))
            print(f"{path.name:<28} {said.verdict:<24} {said.reason}")
            print(f"    {[(f.cause, round(f.share, 2)) for f in said.findings]} {said.notes[-1]}")
        shape = read_model(str(Path(folder) / "8b"))
    page = HEAD + table(found) + "\n" + traces(args.results, shape, read_device(args.device))
    if args.out:
        args.out.write_text(page)
    print(msgspec.json.encode(Counter(said.verdict for _, _, said in found)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
