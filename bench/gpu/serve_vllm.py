"""`powerband loop` on vLLM with a published shape and random weights, cut by the clock and continued where it stopped.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/serve_vllm.py --shape llama-13b --out results --limit 560

Needs no model hub: the model is a config.json and a generated tokenizer, loaded with load_format=dummy (speed does not
depend on the values of weights; answers do, so nothing here says anything about quality). The traffic is offered beyond
the rate at which vLLM's own defaults break the SLO, found first on one running server. The journal is kept in --work
and packed into --out at the end; the same command again goes on with the session that is there (--from puts one there
from an earlier home.tgz). Exit: that of the loop, or 4 where the clock ended it.
"""

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shapes import LLAMA, MODELS, write_model

from powerband.records.run import Trial
from powerband.stores.sqlite import Journal

SHAPES: dict[str, dict[str, Any]] = {
    "llama-13b": MODELS["llama-13b"],
    "gqa-7b": MODELS["gqa-7b"],
    "moe-30b": MODELS["moe-30b"],
    "tiny": {  # to rehearse on a CPU
        **LLAMA,
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 2048,
        "max_position_embeddings": 2048,
    },
}
LENGTHS = "in=lognormal(5.5,0.9,16..2000),out=lognormal(4.7,0.7,8..384)"
# Requests/s to begin with, near where the defaults should break the promise on an H200.
RATES = {"llama-13b": 22.0, "gqa-7b": 40.0, "moe-30b": 30.0, "tiny": 4.0}
# Not turned, so that the few starts that fit into a call go where something is to be gained: kernels that would have to
# be built first, modes that are known to be slower, and what the generated prompts cannot show.
FIXED = (
    "attention_backend=auto", "enforce_eager=false", "cudagraph_mode=auto", "async_scheduling=true",
    "gpu_memory_utilization=0.92", "enable_prefix_caching=true", "long_prefill_token_threshold=0",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-13b")
    parser.add_argument("--out", type=Path, required=True, help="folder for the journal, the report and the table")
    parser.add_argument("--work", type=Path, default=Path("/tmp/powerband-serve"), help="model, compiled code, journal")
    parser.add_argument("--from", dest="before", type=Path, help="home.tgz of an earlier call, to go on with")
    parser.add_argument("--limit", type=float, default=560.0, help="seconds for this call (default 560)")
    parser.add_argument("--budget", default="20m", help="engine time of the whole session (default 20m)")
    parser.add_argument("--window", default="15s", help="arrivals in a trial (default 15s)")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each side in verify (default 2)")
    parser.add_argument("--rate", type=float, help="requests/s to begin with (default: by shape)")
    parser.add_argument("--scale-rate", default="knee", help="as of powerband loop (default knee)")
    parser.add_argument("--lengths", default=LENGTHS, help=f"of --traffic (default {LENGTHS})")
    parser.add_argument("--slo", default="ttft=500ms,tpot=50ms,percentile=p99")
    parser.add_argument("--exact", action="store_true", help="turn no knob that alters the answers")
    parser.add_argument("--command", choices=("loop", "tune"), default="loop")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="a knob to fix, repeatable")
    arguments = parser.parse_args()
    began = time.monotonic()
    home = arguments.work / arguments.shape / "home"
    if arguments.before is not None and not home.exists():
        home.mkdir(parents=True)
        with tarfile.open(arguments.before) as archive:
            archive.extractall(home, filter="data")
    command = command_of(arguments, home)
    print(" ".join(command), flush=True)
    try:
        code = run_until(command, began + arguments.limit)
    finally:
        if (home / "journal.sqlite").exists():
            keep(home, arguments.out)
            print((arguments.out / "trials.txt").read_text(encoding="utf-8"))
    return code


def command_of(arguments: argparse.Namespace, home: Path) -> list[str]:
    """A new session, or the last one again where the journal has one."""
    model = write_model(arguments.work / "models" / arguments.shape, SHAPES[arguments.shape])
    start = [sys.executable, "-m", "powerband", arguments.command, "--home", str(home)]
    if (home / "journal.sqlite").exists():
        return [*start, "--resume"]
    rate = arguments.rate or RATES[arguments.shape]
    settings = ["load_format=dummy", f"VLLM_CACHE_ROOT={arguments.work / 'cache'}", *FIXED, *arguments.set]
    return [
        *start, str(model), "--engine", "vllm", "--device", "auto", "--slo", arguments.slo,
        *([] if arguments.exact else ["--numerics"]),
        "--traffic", f"{arguments.lengths},arrivals=poisson({rate:g}/s)", "--scale-rate", arguments.scale_rate,
        "--budget", arguments.budget, "--window", arguments.window, "--repeats", str(arguments.repeats),
        *[word for setting in settings for word in ("--set", setting)],
    ]  # fmt: skip


def run_until(command: list[str], end: float) -> int:
    """The command's exit code, or 4 where the clock ended it: by Ctrl-C, so that finished trials are kept."""
    process = subprocess.Popen(command)
    try:
        return process.wait(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        print("the clock ends this call; the session can go on", flush=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
        return 4
    process.kill()
    process.wait()
    return 4


def keep(home: Path, out: Path) -> None:
    """The journal with its evidence as one file, the pages, and the trials so far as a table."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "home.tgz", "w:gz") as archive:
        archive.add(home, arcname=".")
    for page in home.glob("reports/*"):
        shutil.copy(page, out)
    journal = Journal(home)
    trials = journal.trials(journal.session(None).session_id)
    (out / "trials.txt").write_text(draw(trials), encoding="utf-8")


def draw(trials: list[Trial]) -> str:
    """One line a trial: what was set, what was predicted, what came."""
    lines = [f"{'n':>3} {'purpose':<10}{'req/s good':>11}{'predicted':>10}{'within':>8}{'tok/s':>8}{'ttft p99':>10}"
             f"{'tpot p99':>10}{'start s':>9}{'all s':>7}  settings"]  # fmt: skip
    for trial in trials:
        lines.append(f"{trial.n:>3} {trial.purpose:<10}{figures(trial)}{trial.startup_s:>9.1f}"
                     f"{trial.engine_seconds:>7.1f}  {json.dumps(settings_of(trial))}")  # fmt: skip
        if trial.cause:
            lines.append(f"    {trial.status}: {trial.cause}")
    return "\n".join([*lines, f"engine time {sum(trial.engine_seconds for trial in trials):.0f} s", ""])


def figures(trial: Trial) -> str:
    predicted = f"{trial.predicted.objective:>10.2f}" if trial.predicted else f"{'-':>10}"
    found = trial.measured
    if found is None:
        return f"{'-':>11}{predicted}{'-':>8}{'-':>8}{'-':>10}{'-':>10}"
    ttft, tpot = (getattr(one, "p99", float("nan")) for one in (found.ttft_s, found.tpot_s))
    return (
        f"{found.goodput_per_s or 0:>11.2f}{predicted}{found.attainment or 0:>8.1%}{found.output_tokens_per_s:>8.0f}"
        f"{ttft:>10.3f}{tpot:>10.4f}"
    )


def settings_of(trial: Trial) -> dict[str, Any]:
    fixed = {"load_format", "VLLM_CACHE_ROOT", *(setting.partition("=")[0] for setting in FIXED)}
    return {name: value for name, value in trial.config.knobs.items() if name not in fixed}


if __name__ == "__main__":
    sys.exit(main())
