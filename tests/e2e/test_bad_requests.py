"""A wrong request: exit 2, a line that says what was seen, a line that says what is accepted, and no traceback."""

import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest


def powerband(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "powerband", *argv], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def refused(cwd: Path, *argv: str) -> str:
    """The two lines on stderr of a command that must be refused."""
    done = powerband(*argv, cwd=cwd)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert lines[-2].startswith("error: "), done.stderr
    assert lines[-1].startswith("hint: "), done.stderr
    assert "Traceback" not in done.stderr
    return "\n".join(lines[-2:])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:{second:02d}.0000000,20,8\n" for second in range(30))
    )
    return path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A header that says version 3, one tensor, and then ends."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 5) + b"\x01")
    return path


def loop(trace: Path, *argv: str) -> list[str]:
    return ["loop", "fake", "--engine", "fake", "--traffic", str(trace), *argv]


def test_an_unknown_command_lists_near_names(tmp_path: Path) -> None:
    assert "loop" in refused(tmp_path, "lop")


def test_an_unknown_engine_lists_near_names(tmp_path: Path, trace: Path) -> None:
    assert "llamacpp" in refused(tmp_path, "loop", "m.gguf", "--engine", "lamacpp", "--traffic", str(trace))


def test_an_unknown_knob_lists_near_names(tmp_path: Path, trace: Path) -> None:
    assert "slots" in refused(tmp_path, *loop(trace, "--set", "slot=4"))


def test_a_knob_out_of_range_says_the_range(tmp_path: Path, trace: Path) -> None:
    assert "accepted" in refused(tmp_path, *loop(trace, "--set", "slots=-3"))


def test_an_unknown_device_lists_near_names(tmp_path: Path) -> None:
    shape = '"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128'
    (tmp_path / "config.json").write_text(f'{{"model_type": "llama", "vocab_size": 100, {shape}}}')
    assert "rtx4090" in refused(tmp_path, "account", str(tmp_path), "--device", "rtx409")


def test_a_missing_model_path(tmp_path: Path, trace: Path) -> None:
    text = refused(tmp_path, "loop", "./nowhere.gguf", "--engine", "llamacpp", "--traffic", str(trace))
    assert "nowhere.gguf" in text


def test_a_file_that_is_no_model(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello, I am not a model\n" * 20)
    assert "text.gguf" in refused(tmp_path, "loop", "./text.gguf", "--engine", "llamacpp", "--traffic", str(trace))


def test_a_truncated_gguf(tmp_path: Path, trace: Path, gguf: Path) -> None:
    assert "cut.gguf" in refused(tmp_path, "loop", str(gguf), "--engine", "llamacpp", "--traffic", str(trace))


def test_a_trace_with_a_missing_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.0,20\n")
    assert "GeneratedTokens" in refused(tmp_path, *loop(tmp_path / "t.csv"))


def test_a_trace_with_a_negative_length(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,-20,4\n")
    assert "-20" in refused(tmp_path, *loop(tmp_path / "t.csv"))


def test_an_empty_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("")
    assert "empty" in refused(tmp_path, *loop(tmp_path / "t.csv"))


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    assert "gone.csv" in refused(tmp_path, *loop(tmp_path / "gone.csv"))


@pytest.mark.parametrize(
    "slo", ["ttft", "ttft=500", "ttft=fast", "tttft=1s", "attainment=0.9", "ttft=1s,attainment=7", ""]
)
def test_an_unreadable_slo(tmp_path: Path, trace: Path, slo: str) -> None:
    refused(tmp_path, *loop(trace, "--slo", slo))


@pytest.mark.parametrize("budget", ["10", "0s", "-5m", "soon"])
def test_an_unreadable_budget(tmp_path: Path, trace: Path, budget: str) -> None:
    refused(tmp_path, *loop(trace, f"--budget={budget}"))


def test_a_budget_too_small_for_one_trial(tmp_path: Path, trace: Path) -> None:
    assert "one trial" in refused(tmp_path, *loop(trace, "--budget", "3s", "--window", "20s"))


def test_a_taken_port_is_refused_and_left_alone(tmp_path: Path, trace: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        assert str(port) in refused(tmp_path, *loop(trace, "--set", f"port={port}"))


def test_a_url_where_nothing_answers(tmp_path: Path, trace: Path) -> None:
    done = powerband("loop", "http://127.0.0.1:9", "--traffic", str(trace), cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("rate", ["auto", "knee"])
def test_verify_takes_no_rate_that_a_loop_would_have_to_find(tmp_path: Path, rate: str) -> None:
    assert rate in refused(tmp_path, "verify", "a.toml", "b.toml", "--scale-rate", rate)


def test_a_knee_needs_a_promise_to_break(tmp_path: Path) -> None:
    traffic = "in=40,out=8,arrivals=poisson(20/s)"
    assert "SLO" in refused(tmp_path, "loop", "fake", "--engine", "fake", "--traffic", traffic, "--scale-rate", "knee")


@pytest.mark.parametrize("command", ["journal", "report"])
def test_no_journal_yet(tmp_path: Path, command: str) -> None:
    assert "no journal" in refused(tmp_path, command)


def test_nothing_to_resume(tmp_path: Path) -> None:
    refused(tmp_path, "loop", "--resume")


def test_an_engine_that_dies_at_start_shows_its_last_lines(tmp_path: Path, trace: Path) -> None:
    done = powerband(*loop(trace, "--set", "fail_start=true", "--budget", "10m"), cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "error: " in done.stderr
    assert "  | " in done.stderr or "fail" in done.stderr
    assert "Traceback" not in done.stderr
