"""Servers for the load benches: the C one, built on the spot, or the shipped fake; each pinned to a core."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SERVER_CORE, CLIENT_CORE = 0, 1
PR_SET_PDEATHSIG = 1


def build() -> Path:
    """Compile load_server.c; SystemExit in words where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("no C compiler: the server of this bench must cost less than any client")
    program = Path(tempfile.gettempdir()) / f"powerband-load-server-{os.getuid()}"
    source = Path(__file__).with_name("load_server.c")
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return program


@contextlib.contextmanager
def c_server(
    ttft_ms: float, itl_ms: float, chunks: int, arrivals: Path | None = None, *, sleeps: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """URL, and a dict that holds the server's own report (requests, lateness in µs) once it has ended.

    ``arrivals`` then holds the instant of each request's arrival as int64 ns. ``sleeps`` leaves the core to others
    between writes, which come up to 1 ms late.
    """
    report: dict[str, Any] = {}
    argv = [
        str(build()),
        "0",
        str(ttft_ms),
        str(itl_ms),
        str(chunks),
        *([str(arrivals)] if arrivals else ["sleep"] if sleeps else []),
    ]
    with _pinned(argv) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], report
        process.terminate()
        report.update(json.loads(process.stdout.readline()))


@contextlib.contextmanager
def fake_server(*flags: str) -> Iterator[str]:
    with _pinned([sys.executable, "-m", "powerband.engines.fake_server", "--mode", "timed", *flags]) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@contextlib.contextmanager
def _pinned(argv: list[str]) -> Iterator["subprocess.Popen[str]"]:
    pin = ["taskset", "-c", str(SERVER_CORE)] if (os.cpu_count() or 1) > 1 and shutil.which("taskset") else []
    with subprocess.Popen([*pin, *argv], stdout=subprocess.PIPE, text=True, preexec_fn=_end_with_parent) as process:
        try:
            yield process
        finally:
            process.terminate()


def _end_with_parent() -> None:
    """A bench that is killed leaves no server on its core."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def pin_client() -> None:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {CLIENT_CORE})
