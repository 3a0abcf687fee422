"""The fake server as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fake_process(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address and its process, which is ended with the block."""
    command = [sys.executable, "-m", "powerband.engines.fake_server", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line.startswith("listening on http://127.0.0.1:"), line
        yield line.split()[-1], process
    finally:
        process.terminate()
        process.communicate(timeout=10)


@contextmanager
def fake(*options: str) -> Iterator[str]:
    """Its address alone."""
    with fake_process(*options) as (url, _):
        yield url
