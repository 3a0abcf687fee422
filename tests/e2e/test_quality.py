"""``powerband verify --quality`` on the fake engine, whose 8-bit answers are close and whose 4-bit answers are not."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from powerband.cli import main


@pytest.fixture
def task(tmp_path: Path) -> list[str]:
    """A few short prompts and texts: the options that ask them."""
    path = tmp_path / "ours.jsonl"
    rows: list[dict[str, str]] = [{"prompt": f"say {n} times hello"} for n in range(6)]
    rows += [{"text": " ".join(f"w{n * k % 37}" for k in range(26))} for n in range(1, 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--task", str(path), "--answer-tokens", "16"]


def plan(folder: Path, bits: int, model: str = "fake") -> str:
    path = folder / f"bits-{bits}.toml"
    path.write_text(f'engine = "fake"\nmodel = "{model}"\n[knobs]\nbits = {bits}\nstep_ms = 1.0\nslots = 8\n')
    return str(path)


def gate(capsys: pytest.CaptureFixture[str], home: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    code = main(["verify", *argv, "--quality", "--json", "--quiet", "--home", str(home)])
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return code, found


def test_eight_bits_pass_and_four_fail_with_intervals(
    tmp_path: Path, task: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    full, eight, four = (plan(tmp_path, bits) for bits in (16, 8, 4))
    code, found = gate(capsys, home, full, eight, *task)
    assert (code, found["quality"]["verdict"]) == (0, "passed")
    code, found = gate(capsys, home, full, four, *task)
    assert (code, found["quality"]["verdict"]) == (1, "failed")
    metrics = {metric["name"]: metric for metric in found["quality"]["metrics"]}
    interval = metrics["divergence"]["interval"]
    assert metrics["divergence"]["allowed"] < interval["low"] <= metrics["divergence"]["value"] <= interval["high"]
    page = Path(found["page"]).read_text()
    assert "What differs" in page
    assert "divergence" in page


def test_the_reference_against_itself_passes(
    tmp_path: Path, task: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    full = plan(tmp_path, 16)
    code, found = gate(capsys, tmp_path / "home", full, full, *task, "--limits", "code")
    assert (code, found["quality"]["verdict"]) == (0, "passed")


def test_wrong_requests_take_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = plan(tmp_path, 16)
    for argv, said in (
        ([full, "nothing.gguf", "--quality"], "no plan, model file or URL"),
        ([full, full, "--quality", "--task", "chess"], "unknown task"),
        ([full, full, "--quality", "--task", "none"], "without a task"),
        ([full, full, "--quality", "--prompts", "-1"], "below 0"),
        ([full, full, "--quality", "--judge-timeout", "soon"], "cannot read duration"),
    ):
        assert main(["verify", *argv, "--home", str(tmp_path / "home")]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert "hint: " in err


def test_a_verdict_of_the_same_content_is_recalled(
    tmp_path: Path, task: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(b"weights")
    home = tmp_path / "home"
    paths = [plan(tmp_path, bits, str(model)) for bits in (16, 8)]
    _, first = gate(capsys, home, *paths, *task)
    began = time.monotonic()
    _, found = gate(capsys, home, *paths, *task)
    assert found["quality"]["metrics"] == first["quality"]["metrics"]
    assert "recalled" in " ".join(found["quality"]["notes"])
    assert time.monotonic() - began < 1.0
    model.write_bytes(b"weighed")
    _, found = gate(capsys, home, *paths, *task)
    assert "recalled" not in " ".join(found["quality"]["notes"])


def test_verify_of_plans_runs_the_gate_where_the_answers_may_change(
    tmp_path: Path, task: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    full, four = plan(tmp_path, 16), plan(tmp_path, 4)
    argv = ["verify", full, four, "--traffic", "in=8,out=8,concurrency=4", "--requests", "8", "--repeats", "2"]
    code = main([*argv, *task, "--json", "--quiet", "--home", str(tmp_path / "home")])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"], found["quality"]["verdict"]) == (1, "revert", "failed")
    assert "the answers got worse" in found["reason"]
