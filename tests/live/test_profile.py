"""``powerband profile`` on real torch, in an interpreter of its own; skipped where none is known."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

SCRIPT = """
import sys
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        model(torch.randn(4, 256))
print("done", torch.__version__)
"""


@pytest.fixture(scope="module")
def torch_python() -> str:
    for python in (os.environ.get("POWERBAND_TORCH_PYTHON"), sys.executable):
        if python and subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip("no interpreter with torch: name one in POWERBAND_TORCH_PYTHON")


def profile(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "powerband", "profile", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_a_script_is_profiled_and_its_answer_stays_its_own(torch_python: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = profile(
        tmp_path,
        "--json",
        "--steps",
        "4",
        "--warm-up",
        "3",
        "--out",
        "kept.json.gz",
        "--",
        torch_python,
        "script.py",
        "20",
    )
    assert done.returncode == 0, done.stderr
    assert "done 2" in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert sum(part["seconds"] for part in found["breakdown"]) == pytest.approx(found["window_s"])
    assert found["notes"][0].startswith("4 steps recorded of 20 (Sequential); the median step takes")
    assert (tmp_path / "kept.json.gz").stat().st_size > 1000


def test_too_few_steps_are_told_in_two_lines(torch_python: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = profile(tmp_path, "--warm-up", "50", "--", torch_python, "script.py", "3")
    assert done.returncode == 2
    assert "error: 3 steps were seen and none was recorded" in done.stderr


def test_a_script_that_fails_shows_its_own_words(torch_python: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\nraise SystemExit('no such model')\n")
    done = profile(tmp_path, "--", torch_python, "script.py")
    assert done.returncode == 3
    assert "no such model" in done.stderr
    assert "ended with code 1 and no step was recorded" in done.stderr
    assert "Traceback" not in done.stderr
