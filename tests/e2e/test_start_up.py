"""Importing does nothing, and asking for help is quick."""

import statistics
import subprocess
import sys
import time

HEAVY = ("torch", "transformers", "plotly", "numpy", "rich", "jinja2", "xllamacpp", "psutil", "asyncio")


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_loads_nothing_heavy() -> None:
    assert not loaded_by("import powerband") & set(HEAVY)


def test_the_command_frame_loads_nothing_heavy() -> None:
    assert not loaded_by("from powerband.cli import main; main(['--help'])") & set(HEAVY)


def test_help_takes_under_150_ms() -> None:
    seconds = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "powerband", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    # The fastest is the program's own time; the others hold the machine's other work too.
    assert min(seconds) < 0.150, f"median {statistics.median(seconds):.3f} s"
