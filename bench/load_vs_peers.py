"""Our load generator beside guidellm and aiperf: one server that knows the truth, one rate, one tool at a time.

The server (bench/load_server.c) answers every request with 16 chunks, the first after 50 ms, then one each 10 ms, and
has a core of its own; the tool, with all of its processes, has the other. For each tool and rate: how far its TTFT is
from 50 ms, what rate really arrived at the server, whether the tool itself said that it was late, CPU seconds per
1,000 requests and peak memory (both without imports: a run of 20 requests is taken off). ``honest`` is a rate whose
p99 TTFT is within 5 ms, and that arrived within 2 %, with every request answered.

    python bench/load_vs_peers.py --rates 50,100,... [--guidellm VENV] [--aiperf VENV] [--seconds 5]

Each peer is a virtual environment with the tool installed from PyPI; a tool that is not given is left out. vLLM's
``bench serve`` needs vLLM's compiled parts and so a GPU wheel; it is not run here.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from load_server import CLIENT_CORE, c_server

TTFT_MS, ITL_MS, CHUNKS, INPUT = 50.0, 10.0, 16, 32
Tool = Callable[[str, float, int, Path], tuple[list[str], Callable[[], dict[str, Any]]]]

_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
vocab = {"<unk>": 0, "<s>": 1} | {f"w{n}": n + 2 for n in range(5000)}
made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>").save_pretrained(sys.argv[1])
"""


def powerband(url: str, rate: float, count: int, folder: Path) -> tuple[list[str], Callable[[], dict[str, Any]]]:
    traffic = f"in={INPUT},out={CHUNKS},arrivals=poisson({rate}/s)"
    argv = [sys.executable, "-m", "powerband", "load", url, "--model", "fake", "--workers", "1", "--quiet", "--json"]
    argv += ["--traffic", traffic, "--requests", str(count), "--home", str(folder / "home")]

    def read() -> dict[str, Any]:
        found = json.loads((folder / "out").read_text())
        ttft = found["metrics"]["ttft_s"]
        said = found["client"]["verdict"] == "limited"
        return figures(found["metrics"]["completed"], 1e3 * ttft["p50"], 1e3 * ttft["p99"], said)

    return argv, read


def aiperf(venv: Path) -> Tool:
    def tool(url: str, rate: float, count: int, folder: Path) -> tuple[list[str], Callable[[], dict[str, Any]]]:
        argv = [str(venv / "bin" / "aiperf"), "profile", "--model", "fake", "--url", url]
        argv += ["--endpoint-type", "completions", "--streaming", "--ui", "none", "--tokenizer", str(tokenizer(venv))]
        argv += ["--synthetic-input-tokens-mean", str(INPUT), "--output-tokens-mean", str(CHUNKS)]
        argv += ["--request-rate", str(rate), "--request-count", str(count), "--artifact-dir", str(folder)]

        def read() -> dict[str, Any]:
            found = json.loads((folder / "profile_export_aiperf.json").read_text())
            ttft = found["time_to_first_token"]
            return figures(int(found["request_count"]["avg"]), ttft["p50"], ttft["p99"], None)

        return argv, read

    return tool


def guidellm(venv: Path) -> Tool:
    def tool(url: str, rate: float, count: int, folder: Path) -> tuple[list[str], Callable[[], dict[str, Any]]]:
        argv = [str(venv / "bin" / "guidellm"), "run", "--disable-console"]
        argv += ["--backend", f"kind=openai_http,target={url},model=fake,request_format=/v1/completions"]
        argv += ["--profile", f"kind=poisson,rate={rate}", "--constraint", f"kind=max_requests,count={count}"]
        argv += ["--data", f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={CHUNKS}"]
        argv += [
            "--tokenizer",
            f"kind=hf_auto,model={tokenizer(venv)}",
            "--output",
            f"kind=json,path={folder / 'g.json'}",
        ]

        def read() -> dict[str, Any]:
            metrics = json.loads((folder / "g.json").read_text())["benchmarks"][0]["metrics"]
            ttft = metrics["time_to_first_token_ms"]["successful"]
            return figures(int(ttft["count"]), ttft["percentiles"]["p50"], ttft["percentiles"]["p99"], None)

        return argv, read

    return tool


def tokenizer(venv: Path) -> Path:
    """A word-level tokenizer made in the peer's environment: no download."""
    place = Path(tempfile.gettempdir()) / f"powerband-bench-tokenizer-{os.getuid()}"
    if not (place / "tokenizer.json").is_file():
        subprocess.run([str(venv / "bin" / "python"), "-c", _TOKENIZER, str(place)], check=True, capture_output=True)
    return place


def figures(completed: int, p50_ms: float, p99_ms: float, said_late: bool | None) -> dict[str, Any]:
    errors = {"ttft_error_p50_ms": round(p50_ms - TTFT_MS, 2), "ttft_error_p99_ms": round(p99_ms - TTFT_MS, 2)}
    return {"completed": completed, **errors, "said_late": said_late}


def measure(tool: Tool, rate: float, count: int, limit_s: float) -> dict[str, Any]:
    """One run; a tool that fails or takes too long is reported as that."""
    with tempfile.TemporaryDirectory() as name, c_server(TTFT_MS, ITL_MS, CHUNKS) as (url, server):
        folder = Path(name)
        argv, read = tool(url, rate, count, folder)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        pin = ["taskset", "-c", str(CLIENT_CORE)] if (os.cpu_count() or 1) > 1 else []
        try:
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                subprocess.run([*pin, *argv], stdout=out, stderr=err, timeout=limit_s, check=True, cwd=folder)
            row = read()
        except (subprocess.SubprocessError, OSError, KeyError, ValueError, TypeError) as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:200]}
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        row["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row["wall_s"] = round(time.monotonic() - began, 1)
        row["peak_mib"] = round(after.ru_maxrss / 1024)  # of the largest process so far
    row |= {"rate": rate, "requests": count, "server_late_p99_us": server["late_us"]["p99"]}
    arrived = (server["requests"] - 1) / server["span_s"] if server["span_s"] else 0.0
    return row | {"arrived_per_s": round(arrived, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", default="50,100,200,400,800,1500,2500,3500")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a run may take")
    parser.add_argument("--guidellm", type=Path, metavar="VENV")
    parser.add_argument("--aiperf", type=Path, metavar="VENV")
    parser.add_argument("--only", help="one of powerband, guidellm, aiperf")
    args = parser.parse_args()
    tools: dict[str, Tool] = {"powerband": powerband}
    if args.aiperf:
        tools["aiperf"] = aiperf(args.aiperf)
    if args.guidellm:
        tools["guidellm"] = guidellm(args.guidellm)
    for name, tool in tools.items():
        if args.only not in (None, name):
            continue
        idle = measure(tool, 20.0, 20, args.limit)
        for rate in map(float, args.rates.split(",")):
            row = measure(tool, rate, max(50, int(rate * args.seconds)), args.limit)
            row["cpu_s_per_1000"] = round(1000 * (row.pop("cpu_s") - idle["cpu_s"]) / row["requests"], 3)
            on_time = abs(row["arrived_per_s"] / rate - 1) < 3 / row["requests"] ** 0.5 + 0.02  # Poisson, 3 sigma
            row["honest"] = "failed" not in row and row["ttft_error_p99_ms"] < 5 and on_time
            print(json.dumps({"tool": name, **row}), flush=True)
            if "failed" in row or row["ttft_error_p50_ms"] > 200:
                break


if __name__ == "__main__":
    main()
