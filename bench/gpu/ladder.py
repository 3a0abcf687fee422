"""The ladder from native Transformers to a tuned vLLM, on one card, for a model's shape with random weights.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH; its python also has torch and transformers
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/ladder.py llama-13b --home out --budget 9m
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/ladder.py llama-13b --home out --budget 9m --resume

Needs no model hub: the model is a config.json and a generated tokenizer; speed and memory do not depend on the values
of weights (quality does, so a quantised rung stays "to be gated"). A call ends within its budget; --resume goes on.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shapes import LLAMA, MODELS, write_model

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {  # to rehearse on a CPU
        **LLAMA,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 2048,
        "max_position_embeddings": 4096,
    },
    "llama-13b": MODELS["llama-13b"],
    "gqa-7b": MODELS["gqa-7b"],
    "moe-30b-a3b": MODELS["moe-30b"],
}
# Mixed lengths: chat-like prompts with a long tail, answers of some tens of tokens.
TRAFFIC = "in=lognormal(5.3,0.9,16..2000),out=lognormal(4.1,0.6,8..256),concurrency=64"
SLO = "ttft=500ms,tpot=50ms,percentile=p99"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("--home", type=Path, required=True, help="where the journal, the reports and the model go")
    parser.add_argument("--engine", default="vllm", help="the engine at the top (default vllm)")
    parser.add_argument("--budget", default="9m", help="time of this call (default 9m)")
    parser.add_argument("--window", default="20s", help="time of one load (default 20s)")
    parser.add_argument("--traffic", default=TRAFFIC, help=f"default {TRAFFIC}")
    parser.add_argument("--slo", default=SLO, help=f"default {SLO}")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--resume", action="store_true", help="go on with the last session of --home")
    given = parser.parse_args()
    command = [sys.executable, "-m", "powerband", "loop"]
    if given.resume:
        command += ["--resume"]
    else:
        model = write_model(given.home / "models" / given.shape, SHAPES[given.shape])
        settings = ["load_format=dummy", *given.set]
        command += [str(model), "--from", "transformers", "--engine", given.engine, "--device", given.device]
        command += ["--traffic", given.traffic, "--slo", given.slo, "--window", given.window]
        command += [word for pair in settings for word in ("--set", pair)]
    command += ["--home", str(given.home), "--budget", given.budget]
    return subprocess.run(command, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
