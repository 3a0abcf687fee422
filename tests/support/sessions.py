"""Start powerband as a person would, watch it, and look at what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

TRAFFIC = "in=40,out=8,arrivals=poisson(20/s)"


def loop_argv(*extra: str, budget: str = "2m", window: str = "2s") -> list[str]:
    """A short loop on the fake engine."""
    slo = "ttft=400ms,tpot=100ms"
    fake = ["loop", "fake", "--engine", "fake", "--traffic", TRAFFIC, "--requests", "40", "--slo", slo]
    return [*fake, "--repeats", "2", "--budget", budget, "--window", window, *extra]


def run(*argv: str, cwd: Path, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "powerband", *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextmanager
def started(*argv: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """powerband in a process group of its own, its output in out.txt and err.txt; killed at the end if need be."""
    with (cwd / "out.txt").open("w") as out, (cwd / "err.txt").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "powerband", *argv],
            cwd=cwd,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def wait_for(what: str, ready: Callable[[], object], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)


def family(pid: int) -> list[psutil.Process]:
    """Every process that descends from ``pid`` now."""
    try:
        children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def finished(home: Path) -> list[str]:
    """Run ids of the trials that the journal holds, in order."""
    done = subprocess.run(
        [sys.executable, "-m", "powerband", "journal", "--home", str(home), "--json"], capture_output=True, check=False
    )
    if done.returncode != 0:
        return []
    sessions: list[dict[str, Any]] = json.loads(done.stdout)
    return [trial["run_id"] for session in sessions for trial in session["trials"] if trial["run_id"]]
