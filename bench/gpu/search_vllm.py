"""Which search finds good settings of a real vLLM in the fewest trials: a grid measured once, replayed for all.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH
    PYTHONPATH=src:bench:$PYTHONPATH python3 bench/gpu/search_vllm.py measure --runs grid --share 0/3 --budget 480
    PYTHONPATH=src:bench python bench/gpu/search_vllm.py replay --runs grid --out docs/reference/search-vllm.md

The shape of Llama-3-8B with random weights. ``measure`` takes every n-th config of a shuffled order (--share k/n: one
share a card), starts four servers at once, since an idle one disturbs nothing, and sends each config the traffic
twice; what is in --runs is not measured again, and no load begins after the budget.
"""

import argparse
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from shapes import MODELS, write_model

from powerband.engines.running import Running
from powerband.engines.vllm import Vllm
from powerband.engines.vllm_knobs import Machine, vllm_knobs
from powerband.load.target import Target
from powerband.measure import observe
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError, PowerbandError
from powerband.records.slo import Slo
from powerband.records.units import GIB
from powerband.warm_up import warm_up
from search_grid import Grid, Measured, replay

SHAPE, AT_ONCE, REPEATS = "gqa-8b", 4, 2
PROMISE = Slo(ttft_s=1.0, tpot_s=0.025)
TRAFFIC = "in=lognormal(6.2,0.8,32..4000),out=lognormal(4.7,0.6,16..400),arrivals=poisson(40/s)"
FIXED = {
    "load_format": "dummy", "max_model_len": 8192, "gpu_memory_utilization": 0.22, "kv_cache_memory_bytes": 12 * GIB,
    "enable_prefix_caching": False,
}  # fmt: skip
COARSE = {
    "max_num_seqs": (32, 64, 128, 1024),
    "max_num_batched_tokens": (512, 2048, 8192),
    "kv_cache_dtype": ("auto", "fp8"),
}
# Where a search may begin: what `vllm serve` takes when not told, and limits copied from a small card.
STARTS = {
    ", from its defaults": {},
    ", from a small card's": {"max_num_seqs": 32, "max_num_batched_tokens": 512},
}


def grid_of(folder: Path) -> Grid:
    knobs = vllm_knobs(Machine(cards=1, memory_bytes=141 * 10**9, name="NVIDIA H200", cores=16))
    model = write_model(folder / "models" / SHAPE, MODELS[SHAPE])
    return Grid(
        "8B on vLLM, one H200", Vllm(), str(model), device="h200", knobs=knobs, coarse=COARSE, fixed=FIXED,
        traffic=TRAFFIC, requests=320, slo=PROMISE, late_s=6.0, start_s=60.0,
    )  # fmt: skip


def collect(grid: Grid, folder: Path, share: int, shares: int, budget_s: float) -> None:
    """Measure what is missing of a share, a few servers at a time."""
    until = time.monotonic() + budget_s
    order = grid.configs()
    random.Random(0).shuffle(order)
    wanted = [config for config in order[share::shares] if not path_of(folder, config, REPEATS - 1).exists()]
    for first in range(0, len(wanted), AT_ONCE):
        if time.monotonic() > until - 100:
            print(f"{len(wanted) - first} configs left out, no time", flush=True)
            return
        few = wanted[first : first + AT_ONCE]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            servers = list(pool.map(lambda config: start(grid, config, folder), few))
        try:
            for config, server in zip(few, servers, strict=True):
                if isinstance(server, str):
                    keep(folder, Measured(config=config, repeat=0, seconds=0.0, run=None, died=server))
                elif time.monotonic() < until - 30:
                    measure_one(grid, config, server, folder)
        finally:
            for server in servers:
                if not isinstance(server, str):
                    server.stop()


def start(grid: Grid, config: EngineConfig, folder: Path) -> Running | str:
    try:
        return grid.adapter.start(config, folder / "logs" / config.key)
    except EngineError as error:
        return error.message


def measure_one(grid: Grid, config: EngineConfig, server: Running, folder: Path) -> None:
    target = Target(url=server.url, model=server.model_id, extra_body=grid.adapter.extra_body)
    warm_up(server, target, grid.workload)
    for repeat in range(REPEATS):
        if path_of(folder, config, repeat).exists():
            continue
        began = time.monotonic()
        try:
            run = observe(
                server, target, config, grid.workload, run_id=f"{config.key}-{repeat}",
                command="bench/gpu/search_vllm.py", cut_s=grid.deadline_s,
            )  # fmt: skip
        except PowerbandError as error:
            keep(folder, Measured(config=config, repeat=repeat, seconds=0.0, run=None, died=error.message))
            return
        seconds = time.monotonic() - began + server.startup_s
        keep(folder, Measured(config=config, repeat=repeat, seconds=seconds, run=run))


def keep(folder: Path, one: Measured) -> None:
    path = path_of(folder, one.config, one.repeat)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(one))
    part.replace(path)
    knobs = {name: one.config.knobs[name] for name in COARSE}
    good = (
        one.died or f"{one.run.metrics(Slo(ttft_s=1.0, tpot_s=0.025)).goodput_per_s or 0:.2f}/s"
        if one.run
        else one.died
    )
    print(f"{path.name} {one.seconds:.0f} s {knobs} {good}", flush=True)


def findings(grid: Grid) -> str:
    """What the grid itself says: where vLLM's own defaults stand in it."""
    ranked = sorted(grid.configs(), key=grid.exact, reverse=True)
    best, rank = grid.exact(ranked[0]), ranked.index(grid.baseline) + 1
    below = statistics.fmean(grid.exact(config) / best for config in ranked[rank:])
    return (
        "\nThe shape of Llama-3-8B with random weights, vLLM 0.26, repeats within one start. **What vLLM does when not "
        f"told is number {rank} of {len(ranked)}, {1 - grid.exact(grid.baseline) / best:.1%} below the best**: little "
        f"is left to win from there by these three settings, while the configs below it bring {below:.0%} of the best "
        "on average. A search that measures the baseline first, as all do here, has little to lose; what one can win "
        "shows from limits copied from a small card (32 sequences, 512 tokens a step). `fp8` changes the answers and "
        "has to pass the quality gate before it is advised. What the simulator knows of vLLM comes from other runs on "
        "such a card.\n"
    )


def path_of(folder: Path, config: EngineConfig, repeat: int) -> Path:
    return folder / f"{config.key}-r{repeat}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "replay"))
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=Path, help="append every session here; those there are not run again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    grid = grid_of(args.runs)
    if args.what == "measure":
        share, shares = map(int, args.share.split("/"))
        collect(grid, args.runs, share, shares, args.budget)
        return 0
    grid.load(args.runs)
    text = replay(
        grid,
        "Search on a real engine: vLLM on an H200",
        "bench/gpu/search_vllm.py",
        args.seeds,
        args.rows,
        findings(grid),
        STARTS,
    )
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
