"""``powerband verify --quality`` on the fake engine, whose 8-bit answers are close and whose 4-bit answers are not."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from powerband.cli import main


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


def test_eight_bits_pass_and_four_fail_with_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    full, eight, four = (plan(tmp_path, bits) for bits in (16, 8, 4))
    code, found = gate(capsys, home, full, eight, "--prompts", "5")
    assert code == 0
    assert found["quality"]["verdict"] == "passed"
    code, found = gate(capsys, home, full, four, "--prompts", "5")
    assert code == 1
    assert found["quality"]["verdict"] == "failed"
    metrics = {metric["name"]: metric for metric in found["quality"]["metrics"]}
    interval = metrics["divergence"]["interval"]
    assert metrics["divergence"]["allowed"] < interval["low"] <= metrics["divergence"]["value"] <= interval["high"]
    page = Path(found["page"]).read_text()
    assert "What differs" in page
    assert "divergence" in page


def test_the_reference_against_itself_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = plan(tmp_path, 16)
    code, found = gate(capsys, tmp_path / "home", full, full, "--prompts", "4", "--task", "code")
    assert (code, found["quality"]["verdict"]) == (0, "passed")


def test_wrong_requests_take_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = plan(tmp_path, 16)
    for argv, said in (
        ([full, "nothing.gguf", "--quality"], "no plan, model file or URL"),
        ([full, full, "--quality", "--task", "chess"], "unknown task"),
        ([full, full, "--quality", "--prompts", "-1"], "below 0"),
        ([full, full, "--quality", "--judge-timeout", "soon"], "cannot read duration"),
    ):
        assert main(["verify", *argv, "--home", str(tmp_path / "home")]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert "hint: " in err


def test_a_verdict_of_the_same_content_is_recalled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fake has no model file, so that a file of that name stands for one: its content is part of the key."""
    model = tmp_path / "model.bin"
    model.write_bytes(b"weights")
    home = tmp_path / "home"
    paths = [plan(tmp_path, bits, str(model)) for bits in (16, 8)]
    _, first = gate(capsys, home, *paths, "--prompts", "4")
    began = time.monotonic()
    _, found = gate(capsys, home, *paths, "--prompts", "4")
    assert found["quality"]["metrics"] == first["quality"]["metrics"]
    assert "recalled" in " ".join(found["quality"]["notes"])
    assert time.monotonic() - began < 0.5
    model.write_bytes(b"weighed")
    _, found = gate(capsys, home, *paths, "--prompts", "4")
    assert "recalled" not in " ".join(found["quality"]["notes"])
