"""Importing does nothing, and asking for help is quick."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.unit.account.models import LLAMA_7B

HEAVY = ("torch", "transformers", "plotly", "numpy", "rich", "jinja2", "xllamacpp", "psutil", "asyncio")


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_loads_nothing_heavy() -> None:
    assert not loaded_by("import powerband") & set(HEAVY)


def test_the_command_frame_loads_nothing_heavy() -> None:
    assert not loaded_by("from powerband.cli import main; main(['--help'])") & set(HEAVY)


def test_an_account_without_traffic_loads_no_numpy(tmp_path: Path) -> None:
    """It takes a third of the command's time."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    command = ["account", str(tmp_path), "--device", "h200"]
    loaded = loaded_by(f"from powerband.cli import main; assert main({command!r}) == 0")
    assert "numpy" not in loaded


def test_help_takes_under_150_ms() -> None:
    seconds = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "powerband", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    # The fastest is the program's own time; the others hold the machine's other work too.
    assert min(seconds) < 0.150, f"median {statistics.median(seconds):.3f} s"
