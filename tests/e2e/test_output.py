"""Where the output cannot be written: exit 3 and a line, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
COMMANDS = [
    ["--help"],
    ["--version"],
    ["journal", "--help"],
    ["load", "--help"],
    ["journal"],
    ["journal", "--json"],
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from powerband.stores.sqlite import Journal

    folder = tmp_path_factory.mktemp("home")
    journal = Journal(folder)
    journal.begin("loop", "{}")
    journal.close()
    return folder


def powerband(home: Path, redirect: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
    more = ["--home", str(home)] if argv[0] == "journal" and "--help" not in argv else []
    words = [sys.executable, "-m", "powerband", *argv, *more]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_a_full_disk_is_exit_3_and_one_line(home: Path, argv: list[str]) -> None:
    done = powerband(home, "> /dev/full", argv)
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert os.strerror(28) in line


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_errors_that_cannot_be_written_keep_their_exit_code(
    home: Path, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert powerband(home, "2> /dev/full", ["lop"]).returncode == 2


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_is_no_error(home: Path, redirect: str) -> None:
    done = powerband(home, redirect, ["journal"])
    assert (done.returncode, done.stderr) == (0, "")
