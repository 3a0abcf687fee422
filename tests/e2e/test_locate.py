"""locate over a real socket: the fake engine with planted causes, watched, probed, and read back from disk."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerband.engines.fake import Fake
from powerband.load.runner import run_load
from powerband.load.target import Target
from powerband.locate.diagnose import diagnose
from powerband.measure import measure
from powerband.records.config import EngineConfig
from powerband.records.run import Run
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.run_dir import write_run

NS = 1_000_000_000


def steady_workload(rate_per_s: float, seconds: float, prompt: int = 20, answer: int = 40) -> Workload:
    """Evenly spaced requests of one length."""
    count = int(rate_per_s * seconds)
    spec = [
        RequestSpec(offset_ns=round(k / rate_per_s * NS), input_tokens=prompt, output_tokens=answer)
        for k in range(count)
    ]
    return Workload(requests=tuple(spec), source="test")


def measured(knobs: dict[str, Any], workload: Workload, folder: Path, seconds: float) -> Run:
    config = EngineConfig(engine="fake", model="fake", knobs=knobs)
    return measure(Fake(), config, workload, run_id="planted", folder=folder, command="test", cut_s=seconds)


@pytest.mark.parametrize(
    ("cause", "knobs", "workload"),
    [
        ("no_batching", {"slots": 1}, steady_workload(6, 4)),  # one slot serves 2.4 of 6 requests/s
        ("queueing", {"slots": 3}, steady_workload(14, 4)),  # three slots serve 6.5 of 14
        # Equal answers in a pool of three end together, as in a static batch: only the KV gauge tells them apart.
        (
            "kv_pressure",
            {"slots": 16, "kv_tokens": 700, "kv_policy": "queue", "dialect": "vllm"},
            steady_workload(14, 4, prompt=180),
        ),
        ("tokenizer_bound", {"slots": 16, "tokenizer_ms": 250.0}, steady_workload(6, 4)),
        ("idle_no_work", {"slots": 8}, steady_workload(1, 5, answer=10)),
    ],
)
def test_the_planted_cause_is_found_over_a_real_socket(
    cause: str, knobs: dict[str, Any], workload: Workload, tmp_path: Path
) -> None:
    run = measured(knobs, workload, tmp_path, 6.0)
    found = diagnose(run)
    assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s, abs=1e-6)
    if found.verdict in ("undecided", "client_limited"):
        pytest.skip(f"the machine was too busy to judge the engine: {found.reason}")
    assert found.verdict == cause, found.reason


@pytest.fixture
def one_slot(tmp_path: Path) -> Iterator[str]:
    """The address of a fake engine with a single slot."""
    running = Fake().start(EngineConfig(engine="fake", model="fake", knobs={"slots": 1}), tmp_path)
    yield running.url
    running.stop()


def locate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "powerband", "locate", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_watched_server_under_somebody_elses_load_shows_its_single_slot(one_slot: str) -> None:
    workload = steady_workload(6, 6)
    sender = threading.Thread(
        target=run_load,
        args=(Target(one_slot, "fake", extra_body={"ignore_eos": True}), workload),
        kwargs={"t0_ns": time.monotonic_ns(), "deadline_s": 6.0},
    )
    sender.start()
    time.sleep(1.0)
    done = locate(one_slot, "--for", "3s", "--json", "--quiet")
    sender.join()
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] in ("no_batching", "undecided")  # undecided: the host was contended
    if document["verdict"] == "undecided":
        assert "contended" in document["reason"]
    assert "engine metrics" in document["sources"]
    assert sum(part["seconds"] for part in document["breakdown"]) == pytest.approx(document["window_s"])


def test_a_probe_times_requests_of_its_own(one_slot: str) -> None:
    done = locate(one_slot, "--for", "3s", "--probe", "--traffic", "in=20,out=10,concurrency=3", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["sources"][0] == "request timings"
    assert document["verdict"] in ("no_batching", "undecided", "client_limited"), document["reason"]


def test_a_stored_run_is_diagnosed_from_its_folder_and_for_a_person(tmp_path: Path) -> None:
    run = measured({"slots": 1}, steady_workload(6, 3), tmp_path / "log", 5.0)
    write_run(tmp_path / "run", run)
    done = locate(str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == diagnose(run).verdict
    text = locate(str(tmp_path / "run")).stdout
    assert "of wall time went" in text
    assert "remedy" in text
    assert len(text.splitlines()) < 60


def test_a_profiler_trace_is_diagnosed_and_one_without_gpu_events_refused(tmp_path: Path) -> None:
    """Four kernels of 10 us, each launched 80 us after the one before has ended."""
    events: list[dict[str, Any]] = []
    for k in range(4):
        args = {"correlation": k, "stream": 7, "device": 0}
        call = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 100 * k,
            "dur": 5,
        }
        work = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 100 * k + 10, "dur": 10}
        events += [{**call, "args": args}, {**work, "args": args}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    done = locate(str(path), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "launch_bound"
    assert document["gpu_busy_ratio"] == pytest.approx(40 / 310)
    page = tmp_path / "page.html"
    other = tmp_path / "other.json"
    other.write_text(path.read_text())
    both = locate(str(path), str(other), "--page", str(page), "--json")
    assert json.loads(both.stdout)["notes"][0] == "no rank communicates: shown is trace.json alone"
    twice = locate(str(path), f"{tmp_path}/./trace.json")
    assert (twice.returncode, twice.stdout) == (2, "")
    assert "trace.json is named twice" in twice.stderr
    assert 'class="bar area' in page.read_text()
    path.write_text(json.dumps({"traceEvents": [event for event in events if event["cat"] != "kernel"]}))
    refused = locate(str(path))
    assert refused.returncode == 2
    assert "holds no GPU events in 4 events" in refused.stderr
    assert len(refused.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["no-such-run"], 2, "no runs in"),
        (["http://127.0.0.1:1", "--for", "soon"], 2, "duration"),
        (["http://127.0.0.1:1", "--pid", "999999999"], 2, "no process"),
        (["http://127.0.0.1:1", "--slo", "fast"], 2, "--slo"),
        (["http://127.0.0.1:1", "--for", "1s", "--device", "h2000"], 2, "h200"),
        (["rank0.json", "rank1.json"], 2, "rank0.json is no trace file"),
        (["a", "b", "--prove"], 2, "--prove tests one source"),
        ([], 2, "SOURCE"),
    ],
)
def test_a_wrong_request_gets_one_line_and_a_hint(arguments: list[str], code: int, says: str, tmp_path: Path) -> None:
    done = locate(*arguments, *(["--home", str(tmp_path)] if arguments else []))
    assert done.returncode == code
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    assert says in done.stderr


def test_a_server_that_is_not_there_is_a_failure_of_the_machine() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = locate(f"127.0.0.1:{port}", "--for", "1s")
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
