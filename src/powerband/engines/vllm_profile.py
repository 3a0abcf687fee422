"""vLLM's own torch profiler: the knob that allows it, and a trace of the steps between two requests to the server."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from powerband.probes.http import HttpError, read_page
from powerband.records.config import Value
from powerband.records.errors import EngineError

_START_S, _STOP_S = 60.0, 600.0  # workers write their traces before /stop_profile answers
_SETTLE_S = 30.0


def profiler_knobs(folder: Path) -> dict[str, Value]:
    """The knob a server must be started with, so that it can write traces into ``folder`` (vLLM 0.13 or later)."""
    config = {"profiler": "torch", "torch_profiler_dir": str(folder.resolve()), "torch_profiler_with_stack": False}
    return {"profiler_config": json.dumps(config, separators=(",", ":"))}


@contextlib.contextmanager
def profiled(url: str, folder: Path) -> Iterator[list[Path]]:
    """Record what the server does while the block runs; the list holds the trace files when the block is left.

    Raises EngineError where the server was not started with ``profiler_knobs`` or wrote nothing.
    """
    before, traces = set(_traces(folder)), list[Path]()
    _post(url + "/start_profile", _START_S)
    try:
        yield traces
    finally:
        _post(url + "/stop_profile", _STOP_S)
    until_s = time.monotonic() + _SETTLE_S
    while not (new := [path for path in _traces(folder) if path not in before]):
        if time.monotonic() > until_s:
            raise EngineError(
                f"the profiler wrote no trace into {folder}", hint="is it a folder the server can write to?"
            )
        time.sleep(0.2)
    traces += new


def _traces(folder: Path) -> list[Path]:
    """Traces of the engine's processes: what the API server wrote of itself holds no device work."""
    return sorted(path for path in folder.rglob("*.pt.trace.json*") if "async_llm" not in path.name)


def _post(url: str, timeout_s: float) -> None:
    try:
        status = read_page(url, timeout_s=timeout_s, body={}).status
    except HttpError as error:
        raise EngineError(f"{url}: {error.message}", hint="see the engine's log") from None
    if status == 404:
        raise EngineError(
            f"{url} is not there", hint="start vLLM with profiler_config, such as powerband's profiler_knobs give"
        )
    if status != 200:
        raise EngineError(f"{url} answered HTTP {status}", hint="see the engine's log")
