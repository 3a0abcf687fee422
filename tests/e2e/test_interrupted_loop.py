"""A loop that is killed or stopped: no engine is left behind, no finished trial is lost, and it goes on from there."""

import json
import os
import signal
import sqlite3
from pathlib import Path

import psutil
import pytest

from tests.support.sessions import family, finished, loop_argv, run, started, wait_for


def engine_of(pid: int) -> list[psutil.Process]:
    return [child for child in family(pid) if "fake_server" in " ".join(child.cmdline())]


def rows(home: Path) -> list[tuple[str, str]]:
    """Finished trials; none before there is a journal. Read without a process of its own, which would disturb them."""
    if not (home / "journal.sqlite").exists():
        return []
    db = sqlite3.connect(home / "journal.sqlite")
    try:
        return db.execute("SELECT key, run_id FROM trial ORDER BY n").fetchall()
    except sqlite3.OperationalError:  # its tables are still being made
        return []
    finally:
        db.close()


def stop_in_second_trial(
    cwd: Path, how: signal.Signals
) -> tuple[int | None, list[psutil.Process], list[tuple[str, str]]]:
    """Start a loop, send ``how`` while its second trial runs; gives exit code, its processes, finished trials."""
    home = cwd / ".powerband"
    with started(*loop_argv(window="1s"), cwd=cwd) as process:
        wait_for("the first trial", lambda: rows(home))
        wait_for("the second engine", lambda: engine_of(process.pid))
        engines = family(process.pid)
        before = rows(home)
        os.kill(process.pid, how)
        code = process.wait(20)
    return code, engines, before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_loop_leaves_no_engine_and_resumes(tmp_path: Path, how: signal.Signals) -> None:
    home = tmp_path / ".powerband"
    code, engines, before = stop_in_second_trial(tmp_path, how)
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    assert engines
    wait_for("the engine to be gone", lambda: not any(map(_runs, engines)), 15)

    kept = rows(home)
    assert kept == before
    assert finished(home) == [run_id for _, run_id in kept]

    done = run("loop", "--resume", "--json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    after = rows(home)
    assert after[: len(kept)] == kept
    assert len({key for key, _ in after}) == len(after)
    # The recalled trials were not run again: their folders are older than the resumed process.
    assert "baseline  " not in done.stderr
    document = json.loads(done.stdout)
    assert {"account", "locate", "tune", "verify", "rounds", "journal", "report"} <= document.keys()
    assert Path(tmp_path, document["report"]).is_file()


def test_a_resumed_loop_that_is_finished_runs_nothing(tmp_path: Path) -> None:
    first = run(*loop_argv("--json"), cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    again = run("loop", "--resume", "--json", cwd=tmp_path)
    assert again.returncode == 0
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_a_finished_loop_of_a_small_budget_is_told_again(tmp_path: Path) -> None:
    """What verifying cost is not taken off the budget before the trials that it verified."""
    first = run(*loop_argv("--json", budget="54s"), cwd=tmp_path)
    assert first.returncode in (0, 1), first.stderr
    told = json.loads(first.stdout)
    assert told["rounds"], "the budget should pay for a trial"
    again = run("loop", "--resume", "--json", cwd=tmp_path)
    assert again.returncode == first.returncode, again.stderr
    assert json.loads(again.stdout) == told


def test_a_session_is_run_by_one_process(tmp_path: Path) -> None:
    home = tmp_path / ".powerband"
    with started(*loop_argv(), cwd=tmp_path) as process:
        wait_for("the first engine", lambda: home.exists() and engine_of(process.pid))
        second = run("loop", "--resume", cwd=tmp_path)
    assert second.returncode == 2
    assert "another process" in second.stderr


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
