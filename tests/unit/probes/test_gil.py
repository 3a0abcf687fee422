"""Looks at the interpreter lock of an engine's processes, with answers of py-spy as it gives them."""

import os
import time
from pathlib import Path

import pytest

from powerband.probes import gil
from powerband.probes.gil import GilWatch

HELD = b'[{"pid": 1, "thread_id": 7, "thread_name": "a", "active": true, "owns_gil": true, "frames": []},'
FREE = b'{"pid": 1, "thread_id": 8, "thread_name": "b", "active": false, "owns_gil": false, "frames": []}]'


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gil, "_EVERY_S", 0.01)


def watch_until(looks: int, watch: GilWatch, made: list[int]) -> tuple[str, ...]:
    with watch:
        end_s = time.monotonic() + 20
        while len(made) < looks and time.monotonic() < end_s:
            time.sleep(0.01)
    return watch.notes()


def test_looks_are_counted_by_process() -> None:
    made: list[int] = []

    def dump(pid: int) -> bytes:
        made.append(pid)
        return HELD + FREE if len(made) % 2 else b"[" + FREE

    (line,) = watch_until(4, GilWatch(os.getpid(), dump), made)
    assert f"(pid {os.getpid()})" in line
    held, looks = (int(word) for word in line.split() if word.isdigit())
    assert looks == len(made)
    assert held == (len(made) + 1) // 2


def test_a_process_that_cannot_be_read_is_asked_once_and_said() -> None:
    made: list[int] = []

    def dump(pid: int) -> str:
        made.append(pid)
        return "py-spy: permission denied"

    (line,) = watch_until(1, GilWatch(os.getpid(), dump), made)
    time.sleep(0.1)
    assert line == "interpreter locks were not read: py-spy: permission denied"
    assert len(made) == 1


def test_without_py_spy_the_note_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pip install py-spy" in str(gil._py_spy(1))


def test_what_py_spy_says_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Failed to find python version' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gil._py_spy(1) == "py-spy: Error: Failed to find python version"
