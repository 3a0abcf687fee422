"""Against the fake engine: counts exact, times near its own record of them, faults and the command as promised."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from powerband.load.runner import run_load
from powerband.load.stop_rules import Stop
from powerband.load.target import Endpoint, Loaded, Progress, Target
from powerband.load.trace_log import read_traces
from powerband.load.traffic import build_workload
from powerband.load.words import WORDS
from powerband.records.columns import compute_metrics
from powerband.records.metrics import Distribution
from powerband.stores.sqlite import Journal


@contextlib.contextmanager
def fake(*argv: str) -> Iterator[str]:
    command = [sys.executable, "-m", "powerband.engines.fake_server", "--mode", "timed", "--port", "0", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def load(url: str, spec: str, requests: int, **options: Any) -> Loaded:
    of_run = {name: options.pop(name) for name in ("progress", "workers", "stop") if name in options}
    deadline_s = options.pop("deadline_s", 60.0)
    workload = build_workload(spec, requests=requests)
    target = Target(url, "fake", **options)
    return run_load(target, workload, t0_ns=0, deadline_s=deadline_s, **of_run)  # t0 = 0: absolute times


def test_a_client_that_is_behind_its_schedule_reads_what_comes() -> None:
    """1,500 requests due at once take longer to send than the first answers take to come."""
    with fake("--ttft-ms", "5", "--itl-ms", "5") as url:
        loaded = load(url, "in=30,out=4,arrivals=burst", 1500)
    assert [trace.status for trace in loaded.traces] == ["ok"] * 1500
    last_sent = max(trace.t_send_ns or 0 for trace in loaded.traces)
    assert min(trace.t_chunks_ns[0] for trace in loaded.traces) < last_sent


def test_counts_are_exact_and_times_are_the_servers(tmp_path: Path) -> None:
    """Every token's due time is known; what the client adds is the socket and two processes' turns on the cores."""
    log = tmp_path / "times.jsonl"
    with fake("--ttft-ms", "40", "--itl-ms", "8", "--log-times", str(log)) as url:
        loaded = load(url, "in=30,out=20,arrivals=poisson(60/s)", 120)
    truth = [json.loads(line)["due_s"] for line in log.read_text().splitlines()]
    truth.sort()
    traces = sorted(loaded.traces, key=lambda trace: trace.t_chunks_ns[0])
    assert [trace.status for trace in traces] == ["ok"] * 120
    assert {trace.output_tokens for trace in traces} == {20}
    assert {trace.chunk_tokens for trace in traces} == {(1,) * 20}
    assert {trace.input_tokens for trace in traces} == {30}
    lateness = [
        (seen - due * 1e9) / 1e6
        for due_s, trace in zip(truth, traces, strict=True)
        for due, seen in zip(due_s, trace.t_chunks_ns, strict=True)
    ]
    assert min(lateness) >= 0
    assert np.median(lateness) < 3  # ms; bench/load_precision.py measures it on a quiet machine


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("dialect", ["llamacpp", "vllm"])
def test_prompts_have_the_length_asked_by_the_servers_count(endpoint: Endpoint, dialect: str) -> None:
    with fake("--ttft-ms", "1", "--itl-ms", "1", "--dialect", dialect) as url:
        loaded = load(url, "in=uniform(1..700),out=3,concurrency=4", 30, endpoint=endpoint)
    asked = build_workload("in=uniform(1..700),out=3,concurrency=4", requests=30)
    assert [t.input_tokens for t in loaded.traces] == [r.input_tokens for r in asked.requests]
    wanted = "exact token ids" if endpoint == "completions" else "calibrated"
    assert wanted in loaded.notes[0]


def test_a_tokenizer_of_ones_own_is_used_and_said(tmp_path: Path) -> None:
    """The fake counts a text's words as tokens, and so does a word-level tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {word: number for number, word in enumerate(["<unk>", *dict.fromkeys(WORDS)])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    asked = [r.input_tokens for r in build_workload("in=uniform(1..700),out=3,concurrency=4", requests=20).requests]
    with fake("--ttft-ms", "1", "--itl-ms", "1") as url:
        for endpoint, said in (("chat", "text of an exact count"), ("completions", "exact token ids by")):
            loaded = load(url, "in=uniform(1..700),out=3,concurrency=4", 20, endpoint=endpoint, tokenizer=str(tmp_path))
            assert [t.input_tokens for t in loaded.traces] == asked
            assert said in loaded.notes[0]
            assert not any("not as long as asked" in note for note in loaded.notes)


def test_chunks_of_several_tokens_keep_the_total_and_say_so() -> None:
    with fake("--ttft-ms", "1", "--itl-ms", "1", "--tokens-per-chunk", "4") as url:
        loaded = load(url, "in=5,out=10,concurrency=2", 10)
    assert {trace.chunk_tokens for trace in loaded.traces} == {(4, 4, 2)}
    assert any("several tokens" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("flags", "category"),
    [
        (("--error-rate", "0.5"), "http_503"),
        (("--reset-after", "3", "--fault-every", "2"), "reset"),
        (("--malformed-after", "3", "--fault-every", "2"), "malformed"),
        (("--stall-after", "3", "--fault-every", "2"), "timeout"),
    ],
)
def test_planted_faults_are_reported_as_what_they_are(flags: tuple[str, ...], category: str) -> None:
    with fake("--ttft-ms", "5", "--itl-ms", "2", *flags) as url:
        loaded = load(url, "in=5,out=8,concurrency=8", 40, timeout_s=1.5)
    ends = Counter((t.error or "ok").partition(":")[0] for t in loaded.traces)
    assert ends == {"ok": 20, category: 20}


def test_a_slow_stream_is_the_servers_and_not_the_clients() -> None:
    with fake("--ttft-ms", "300", "--itl-ms", "60") as url:
        loaded = load(url, "in=5,out=5,arrivals=constant(20/s)", 20)
    waits = [trace.t_chunks_ns[0] - trace.t_sched_ns for trace in loaded.traces]
    assert min(waits) >= 300_000_000
    assert "in the client" not in "".join(trace.error or "" for trace in loaded.traces)
    assert loaded.client.cpu_ratio < 0.5


def test_a_short_answer_is_kept_and_noted() -> None:
    with fake("--ttft-ms", "1", "--itl-ms", "1", "--eos-after", "4") as url:
        loaded = load(url, "in=5,out=9,concurrency=2", 6)
    assert [(t.status, t.output_tokens) for t in loaded.traces] == [("ok", 4)] * 6
    assert any("6 answers were not as long as asked" in note for note in loaded.notes)


def test_a_display_that_fails_does_not_end_the_rules() -> None:
    """A terminal that is gone: the run goes on, and --max-errors still ends it. What is no such error is raised."""

    def gone(_: Progress) -> None:
        raise BrokenPipeError

    def wrong(_: Progress) -> None:
        raise ValueError("wrong")

    spec = "in=5,out=5,arrivals=constant(20/s)"
    with fake("--ttft-ms", "5", "--itl-ms", "2", "--error-rate", "1.0") as url:
        loaded = load(url, spec, 400, progress=gone, stop=Stop(max_errors=10))
        assert loaded.stopped_because == "too_many_errors"
        with pytest.raises(ValueError, match="wrong"):
            load(url, spec, 400, progress=wrong)


def test_progress_is_told_about_once_a_second() -> None:
    told: list[Progress] = []
    with fake("--ttft-ms", "20", "--itl-ms", "2") as url:
        load(url, "in=5,out=5,arrivals=constant(20/s)", 50, progress=told.append)
    assert 2 <= len(told) <= 3
    assert told[-1].planned == 50
    assert told[0].ttft_s == pytest.approx(0.02, abs=0.02)
    assert all(a.completed <= b.completed for a, b in pairwise(told))


def powerband_load(tmp_path: Path, *argv: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "powerband", "load", *argv],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_command_prints_its_contract(tmp_path: Path) -> None:
    with fake("--ttft-ms", "30", "--itl-ms", "3") as url:
        slo = "ttft=500ms,tpot=50ms"
        with powerband_load(
            tmp_path,
            url,
            "--traffic",
            "in=9,out=5,concurrency=3",
            "--requests",
            "12",
            "--slo",
            slo,
            "--json",
            "--quiet",
        ) as process:
            out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)
    metrics = found["metrics"]
    assert (found["basis"], metrics["requests"], metrics["completed"]) == ("measured", 12, 12)
    assert (metrics["errors"], metrics["dropped"], metrics["attainment"]) == (0, 0, 1.0)
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        assert {"mean", "p50", "p90", "p99"} <= metrics[name].keys()
    for name in ("duration_s", "request_rate_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_per_s"):
        assert metrics[name] > 0
    assert metrics["ttft_s"]["p50"] == pytest.approx(0.030, abs=0.02)
    assert found["client"]["verdict"] in ("ok", "limited")
    assert found["client"]["cpu_ratio"] > 0
    assert (tmp_path / ".powerband" / "runs" / found["run_id"] / "traces.jsonl.gz").is_file()


def test_ctrl_c_reports_what_there_is(tmp_path: Path) -> None:
    with fake("--ttft-ms", "20", "--itl-ms", "2") as url:
        argv = (url, "--traffic", "in=9,out=5,arrivals=constant(20/s)", "--requests", "2000", "--json")
        with powerband_load(tmp_path, *argv) as process:
            assert process.stderr is not None
            while "done" not in process.stderr.readline():
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode == 130
    assert found["stopped_because"] == "interrupted"
    assert 5 <= found["metrics"]["completed"] <= 200
    assert any("stopped by hand" in note for note in found["notes"])
    assert outcome(tmp_path) == ("stopped", "interrupted", "done")


@pytest.mark.parametrize(
    ("argv", "code", "seen"),
    [
        (("http://127.0.0.1:9",), 3, "Connection refused"),
        (("http://127.0.0.1:9", "--model", "m", "--traffic", "nowhere.csv"), 2, "no traffic file"),
        (("http://127.0.0.1:9", "--slo", "ttft=5"), 2, "cannot read duration"),
        (("http://127.0.0.1:9", "--extra-body", "[1]"), 2, "--extra-body is not a JSON object"),
        (("http://127.0.0.1:9", "--max-seconds", "0"), 2, "must be above 0"),
        ((), 2, "URL"),
    ],
)
def test_a_wrong_request_is_two_lines(tmp_path: Path, argv: tuple[str, ...], code: int, seen: str) -> None:
    with powerband_load(tmp_path, *argv) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert err.startswith("error: ")
    assert "hint: " in err
    assert seen in err


def test_a_server_that_refuses_everything_is_an_engine_error(tmp_path: Path) -> None:
    with fake("--error-rate", "1.0") as url, powerband_load(tmp_path, url, "--requests", "3", "--quiet") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "http_503: planted error" in err
    assert outcome(tmp_path) == ("failed", "no request was answered: http_503: planted error", "failed")


def outcome(folder: Path) -> tuple[str, str, str]:
    """Of the journal's only session: its status and note, and the status of its only trial."""
    journal = Journal(folder / ".powerband")
    (session,) = journal.sessions()
    (trial,) = journal.trials(session.session_id)
    journal.close()
    return session.status, session.note, trial.status


def test_two_processes_share_a_run_on_one_clock(tmp_path: Path) -> None:
    """Each request once, in order, with the server's times: no skew between the processes."""
    log = tmp_path / "times.jsonl"
    with fake("--ttft-ms", "40", "--itl-ms", "8", "--log-times", str(log)) as url:
        loaded = load(url, "in=30,out=6,arrivals=poisson(60/s)", 90, workers=2)
    assert [trace.index for trace in loaded.traces] == list(range(90))
    assert {(trace.status, trace.output_tokens) for trace in loaded.traces} == {("ok", 6)}
    truth = sorted(json.loads(line)["due_s"][0] for line in log.read_text().splitlines())
    seen = sorted(trace.t_chunks_ns[0] for trace in loaded.traces)
    lateness = [(at - due * 1e9) / 1e6 for due, at in zip(truth, seen, strict=True)]
    assert min(lateness) >= 0
    assert np.median(lateness) < 3  # ms
    assert "2 client processes" in loaded.notes


def test_processes_share_the_places_of_a_closed_loop() -> None:
    with fake("--ttft-ms", "20", "--itl-ms", "2") as url:
        loaded = load(url, "in=3,out=4,turns=2,concurrency=5", 40, workers=2)
    assert [trace.index for trace in loaded.traces] == list(range(40))
    at_once, most = 0, 0
    for _, step in sorted(
        [(t.t_send_ns or 0, 1) for t in loaded.traces] + [(t.t_end_ns or 0, -1) for t in loaded.traces]
    ):
        at_once += step
        most = max(most, at_once)
    assert most == 5


def test_a_run_stops_when_it_is_precise_enough_and_cuts_no_answer_off() -> None:
    with fake("--ttft-ms", "30", "--itl-ms", "3") as url:
        loaded = load(url, "in=3,out=4,arrivals=constant(150/s)", 5000, stop=Stop(precision=0.5))
    assert loaded.stopped_because == "precise_enough"
    assert {trace.status for trace in loaded.traces} == {"ok"}
    assert 100 <= len(loaded.traces) < 1500


def test_a_run_stops_at_its_limit_of_errors() -> None:
    with fake("--error-rate", "1.0") as url:
        loaded = load(url, "in=3,out=4,arrivals=constant(50/s)", 5000, stop=Stop(max_errors=20))
    assert loaded.stopped_because == "too_many_errors"
    assert 20 <= len(loaded.traces) < 500


def until_done(process: "subprocess.Popen[str]", count: int) -> None:
    """Until its progress says that so many requests have ended, and a second more, in which they go to disk."""
    assert process.stderr is not None
    for line in process.stderr:
        if int(line.partition("/")[0]) >= count:
            break
    time.sleep(1.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_can_be_read(tmp_path: Path, workers: int) -> None:
    """kill -9 of the command alone: what had ended is on disk, and its client processes end too."""
    with fake("--ttft-ms", "20", "--itl-ms", "2") as url:
        argv = (url, "--traffic", "in=9,out=5,arrivals=constant(40/s)", "--requests", "2000", "--home", "h")
        with powerband_load(tmp_path, *argv, "--workers", str(workers)) as process:
            until_done(process, 30)
            clients = psutil.Process(process.pid).children()
            process.kill()
        _, alive = psutil.wait_procs(clients, timeout=10)
        assert (len(clients), alive) == (0 if workers == 1 else 2, [])
        (folder,) = (tmp_path / "h" / "runs").iterdir()
        with powerband_load(tmp_path, "--show", folder.name, "--home", "h", "--json") as process:
            found = json.loads(process.communicate(timeout=60)[0])
    metrics = found["metrics"]
    assert metrics["completed"] >= 30
    assert metrics["completed"] + metrics["dropped"] == metrics["requests"]  # a client process ends in good order
    assert metrics["ttft_s"]["p50"] >= 0.02
    assert any("did not end by itself" in note for note in found["notes"])


def test_a_lost_client_process_ends_the_run_and_leaves_what_was_written(tmp_path: Path) -> None:
    with fake("--ttft-ms", "20", "--itl-ms", "2") as url:
        argv = (url, "--traffic", "in=9,out=5,arrivals=constant(40/s)", "--requests", "2000", "--home", "h")
        with powerband_load(tmp_path, *argv, "--workers", "2") as process:
            until_done(process, 30)
            clients = psutil.Process(process.pid).children()
            clients[0].kill()
            _, err = process.communicate(timeout=60)
        _, alive = psutil.wait_procs(clients, timeout=10)
        assert (process.returncode, alive) == (3, [])
        assert "a client process ended early" in err
        (folder,) = (tmp_path / "h" / "runs").iterdir()
        with powerband_load(tmp_path, "--show", str(folder), "--json") as process:
            found = json.loads(process.communicate(timeout=60)[0])
    assert found["metrics"]["completed"] >= 20


@pytest.mark.parametrize("workers", [1, 2])
def test_traces_in_a_log_are_those_that_were_kept(tmp_path: Path, workers: int) -> None:
    """Answers, errors and what the deadline cut off: each request once, and the figures those of the log's traces."""
    log = tmp_path / "traces.jsonl.gz"
    workload = build_workload("in=30,out=6,arrivals=constant(80/s)", requests=90)
    with fake("--ttft-ms", "100", "--itl-ms", "8", "--error-rate", "0.3") as url:
        target = Target(url, "fake")
        loaded = run_load(target, workload, t0_ns=0, deadline_s=1.0, workers=workers, trace_log=log)
    traces = sorted(read_traces(log), key=lambda trace: trace.index)
    assert loaded.traces == ()
    assert [trace.index for trace in traces] == list(range(len(traces)))
    assert 70 <= len(traces) <= 85
    assert {trace.status for trace in traces} == {"ok", "error", "dropped"}
    found, kept = loaded.columns.metrics(), compute_metrics(traces)
    assert (found.completed, found.errors, found.dropped) == (kept.completed, kept.errors, kept.dropped)
    assert found.duration_s == kept.duration_s
    assert isinstance(found.itl_s, Distribution)
    assert isinstance(kept.itl_s, Distribution)
    assert (found.itl_s.n, found.itl_s.p99) == (kept.itl_s.n, kept.itl_s.p99)
    assert list(tmp_path.iterdir()) == [log]


def test_the_warm_up_is_cut_by_the_schedule_and_said(tmp_path: Path) -> None:
    with fake("--ttft-ms", "5", "--itl-ms", "2") as url:
        argv = (url, "--traffic", "in=9,out=5,arrivals=constant(40/s)", "--requests", "60", "--home", "h", "--json")
        with powerband_load(tmp_path, *argv, "--quiet", "--warmup", "0.5") as process:
            found = json.loads(process.communicate(timeout=60)[0])
    assert found["metrics"]["requests"] == 40  # due at 0.5 s or later, of 0, 0.025 ... 1.475 s
    assert any("20 requests of the first 500 ms" in note for note in found["notes"])


def test_a_stored_run_is_judged_by_its_own_promise_unless_another_is_given(tmp_path: Path) -> None:
    """Answers begin after 20 ms or more: none keeps 10 ms, all keep 60 s."""
    with fake("--ttft-ms", "20", "--itl-ms", "2") as url:
        argv = (url, "--traffic", "in=9,out=5,concurrency=2", "--requests", "10", "--home", "h", "--json")
        with powerband_load(tmp_path, *argv, "--slo", "ttft=10ms") as process:
            run = json.loads(process.communicate(timeout=60)[0])["run_id"]

    def shown(*more: str) -> str:
        with powerband_load(tmp_path, "--show", run, "--home", "h", "--page", "p.html", *more) as process:
            return process.communicate(timeout=60)[0]

    def headed(answer: str) -> bool:
        page = (tmp_path / "p.html").read_text()
        return answer in page or "not to be used" in page  # where the machine was too busy to send on time

    said = shown()
    assert "No SLO was set" not in said
    assert "SLO TTFT ≤ 10 ms (target attainment 95 %): attainment 0.0 %, not met" in said
    assert headed("Promise missed")
    assert json.loads(shown("--json"))["slo"]["ttft_s"] == 0.01
    assert "attainment 100.0 %, met" in shown("--slo", "ttft=60s")
    assert headed("Promise kept")


def test_stored_runs_are_compared_and_no_key_is_written_down(tmp_path: Path) -> None:
    with fake("--ttft-ms", "20", "--itl-ms", "2", "--api-key", "sesame") as url:
        argv = (url, "--traffic", "in=9,out=5,concurrency=4", "--requests", "60", "--home", "h", "--json")
        runs = []
        for key in (("--api-key", "sesame"), ("--api-key=sesame",)):
            with powerband_load(tmp_path, *argv, *key) as process:
                runs.append(json.loads(process.communicate(timeout=60)[0])["run_id"])
    with powerband_load(tmp_path, "--compare", *runs, "--home", "h", "--json") as process:
        found = json.loads(process.communicate(timeout=60)[0])
    assert [row["name"] for row in found["metrics"]] == ["ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s"]
    assert found["metrics"][0]["ratio"] == pytest.approx(1.0, abs=0.5)
    kept = [path for path in (tmp_path / "h").rglob("*") if path.is_file()]
    assert kept
    assert not any(b"sesame" in path.read_bytes() for path in kept)


def test_the_highest_rate_is_found(tmp_path: Path) -> None:
    """One slot, 5 steps of 2 ms an answer: 100 requests/s is the most there can be, and above it a queue grows."""
    with fake("--mode", "batched", "--slots", "1", "--step-ms", "2", "--step-ms-per-seq", "0") as url:
        traffic = ("--traffic", "in=1,out=5,arrivals=constant(70/s)", "--probe-seconds", "1.5")
        find = ("--find", "max_goodput_rate", "--slo", "e2e=60ms,attainment=0.9", "--home", "h", "--json")
        with powerband_load(tmp_path, url, *traffic, *find) as process:
            out, err = process.communicate(timeout=110)
    if "the client is the limit" in err:
        pytest.skip(f"the machine was too busy to judge a server: {err}")
    assert process.returncode == 0, err
    found = json.loads(out)["max_goodput_rate"]
    assert 65 < found["rate_per_s"] < 130
    assert found["interval"]["low"] <= found["rate_per_s"] <= found["interval"]["high"]
    assert len(found["probes"]) <= 16
