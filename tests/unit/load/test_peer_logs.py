"""Other tools' logs: their own figures come out, by hand; whatever else a file holds is refused in words.

The layouts are those that vLLM 0.32 (benchmarks/serve.py), guidellm 0.8.1 and AIPerf 0.13 wrote in real runs.
"""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from powerband.cli.load_runs import stored_run
from powerband.load.peer_logs import PeerLog, read_peer_log
from powerband.records.columns import compute_metrics
from powerband.records.errors import RequestError
from powerband.records.metrics import Distribution, e2e_s, tpot_s, ttft_from_send_s, ttft_s
from powerband.records.value import Missing


def vllm() -> dict[str, Any]:
    """Two answers: TTFT 50 and 70 ms, then gaps; the third request failed."""
    return {
        "burstiness": float("inf"),
        "start_times": [1000.0, 1000.5, 1001.0],
        "queue_times": [0.0, 0.02, 0.0],
        "ttfts": [0.050, 0.070, 0.0],
        "itls": [[0.010, 0.010, 0.010], [0.020], []],
        "latencies": [0.080, 0.090, 0.0],
        "input_lens": [32, 33, 34],
        "output_lens": [4, 2, 0],
        "errors": ["", "", "Traceback\naiohttp.ClientOSError: reset"],
    }


def guidellm() -> dict[str, Any]:
    timings = {"targeted_start": 5000.0, "request_start": 5000.004, "first_token_iteration": 5000.054,
               "last_token_iteration": 5000.204, "request_end": 5000.205, "token_iterations": 16}  # fmt: skip
    never = {"targeted_start": 5001.0, "request_start": None}
    cut = {**timings, "targeted_start": 5002.0, "request_start": 5002.0, "token_iterations": 0,
           "first_token_iteration": None, "last_token_iteration": None, "request_end": None}  # fmt: skip
    stats = {"prompt_tokens": 32, "output_tokens": 16, "info": {"timings": timings, "error": None}}
    return {
        "benchmarks": [
            {
                "requests": {
                    "successful": [stats],
                    "errored": [{**stats, "info": {"timings": never, "error": "x"}}],
                    "incomplete": [{**stats, "info": {"timings": cut}}],
                }
            }
        ]
    }


def aiperf() -> list[dict[str, Any]]:
    """AIPerf counts by its own tokenizer: 5 tokens in 3 chunks."""
    metrics = {
        "time_to_first_token": {"value": 75.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [10.0, 30.0], "unit": "ms"},
        "request_latency": {"value": 115.0, "unit": "ms"},
        "output_sequence_length": {"value": 5, "unit": "tokens"},
        "input_sequence_length": {"value": 32, "unit": "tokens"},
    }
    at = {"request_start_ns": 7_001_000_000, "credit_issued_ns": 7_000_000_000, "benchmark_phase": "profiling"}
    warm = {**at, "benchmark_phase": "warmup"}
    failed = {**at, "request_start_ns": 8_000_000_000, "credit_issued_ns": 8_000_000_000}
    error = {"type": "ClientConnectorError", "message": "refused"}
    return [
        {"metadata": warm, "metrics": metrics},
        {"metadata": at, "metrics": metrics},
        {"metadata": failed, "metrics": {}, "error": error},
    ]


def read(tmp_path: Path, text: str) -> PeerLog:
    path = tmp_path / "log"
    path.write_text(text)
    return read_peer_log(path)


def test_vllms_figures_come_out(tmp_path: Path) -> None:
    log = read(tmp_path, json.dumps(vllm()))
    assert log.tool == "vLLM bench serve"
    first, second, third = log.traces
    assert [ttft_from_send_s(first), ttft_from_send_s(second)] == pytest.approx([0.050, 0.070])
    assert [e2e_s(first), tpot_s(first)] == pytest.approx([0.080, (0.080 - 0.050) / 3])
    assert ttft_s(second) == pytest.approx(0.090)  # 20 ms behind --max-concurrency
    assert (third.status, third.error) == ("error", "aiohttp.ClientOSError: reset")
    itl = compute_metrics(log.traces).itl_s
    assert isinstance(itl, Distribution)
    assert itl.n == 4
    assert itl.mean == pytest.approx(0.050 / 4)


def test_guidellms_figures_come_out(tmp_path: Path) -> None:
    log = read(tmp_path, json.dumps(guidellm()))
    assert log.tool == "guidellm"
    done, cut = log.traces  # the one that was never sent leaves no trace
    assert [ttft_from_send_s(done), ttft_s(done)] == pytest.approx([0.050, 0.054], abs=1e-6)
    assert tpot_s(done) == pytest.approx(0.150 / 15, abs=1e-6)  # its inter_token_latency
    assert (done.output_tokens, done.input_tokens) == (16, 32)
    assert done.t_end_ns is not None
    assert done.t_send_ns is not None
    assert (done.t_end_ns - done.t_send_ns) / 1e9 == pytest.approx(0.201, abs=1e-6)  # its request_latency
    assert cut.status == "dropped"


def test_aiperfs_figures_come_out(tmp_path: Path) -> None:
    log = read(tmp_path, "\n".join(map(json.dumps, aiperf())))
    assert log.tool == "AIPerf"
    done, failed = log.traces  # the warm-up is not counted
    assert [ttft_from_send_s(done), ttft_s(done)] == pytest.approx([0.075, 0.076])
    assert tpot_s(done) == pytest.approx((0.115 - 0.075) / 4)  # its inter_token_latency
    assert e2e_s(done) == pytest.approx(0.116)
    assert failed.error == "ClientConnectorError: refused"


def test_a_log_is_shown_as_a_run(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps(vllm()))
    load = stored_run(tmp_path, str(tmp_path / "v.json"))
    assert load.metrics(None).completed == 2
    assert len(load.without_warmup(0.4).columns) == 2
    assert isinstance(load.run.client, Missing)


def test_what_is_no_log_is_refused_in_words(tmp_path: Path) -> None:
    """Cut off, garbled, or with fields of the wrong kind: a clean error or a log, never anything else."""
    dice = random.Random(5)
    sources = [json.dumps(vllm()), json.dumps(guidellm()), "\n".join(map(json.dumps, aiperf()))]
    for _ in range(600):
        text = dice.choice(sources)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(text))
            text = text[:at] + dice.choice(["", "null", '"', "9" * 400, "-1", "[", "}", "\x00", "é"]) + text[at + 1 :]
        with contextlib.suppress(RequestError):
            read(tmp_path, text)
    for text in ("", "{}", "[]", "null", '{"benchmarks": []}'):
        with pytest.raises(RequestError, match="no per-request log"):
            read(tmp_path, text)
    with pytest.raises(RequestError, match="cannot read"):
        read_peer_log(tmp_path / "none")
