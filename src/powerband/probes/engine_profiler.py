"""Have a running engine record itself: start and stop torch.profiler over its own endpoints, and find what it wrote."""

import time
from pathlib import Path

from powerband.probes.http import HttpError, read_page
from powerband.records.errors import EngineError, RequestError

# SGLang takes the folder with the request; vLLM ignores it and writes where --profiler-config says.
_START, _STOP = "/start_profile", "/stop_profile"
_ANSWER_S = 120.0  # stopping writes the trace, which takes its time
_WRITTEN_S = 60.0
_HINT = (
    'vLLM: start it with --profiler-config \'{"profiler": "torch", "torch_profiler_dir": "FOLDER"}\'; '
    "SGLang: the folder must be writable for the server"
)


def record_engine(url: str, folder: Path, seconds: float, *, api_key: str = "") -> tuple[Path, ...]:
    """The traces that the engine at ``url`` wrote into ``folder`` (on this machine) of ``seconds`` of its work.

    Raises RequestError where the folder is none or the engine has no such endpoint, EngineError where it fails to
    answer or writes nothing. A recording that was started is stopped whatever happens.
    """
    if not folder.is_dir():
        raise RequestError(f"no folder {str(folder)!r}", hint="the folder that the engine writes its traces to")
    before = _seen(folder)
    _post(url + _START, api_key, {"output_dir": str(folder.absolute()), "activities": ["CPU", "GPU"]})
    try:
        time.sleep(seconds)
    finally:
        _post(url + _STOP, api_key, {})
    return _wait_for_traces(folder, before)


def _post(url: str, api_key: str, body: dict[str, object]) -> None:
    try:
        reply = read_page(url, timeout_s=_ANSWER_S, api_key=api_key, body=body)
    except HttpError as error:
        raise EngineError(error.message, hint="is the server up?") from None
    if reply.status in (404, 405):
        raise RequestError(f"{url} answered HTTP {reply.status}: no profiler can be started there", hint=_HINT)
    if reply.status != 200:
        raise EngineError(f"{url} answered HTTP {reply.status}", hint=_HINT)


def _seen(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*.json*") if path.is_file()}


def _wait_for_traces(folder: Path, before: dict[Path, int]) -> tuple[Path, ...]:
    """New files, once no size has changed for a second: large traces are written in pieces."""
    deadline_s, last = time.monotonic() + _WRITTEN_S, dict[Path, int]()
    while time.monotonic() < deadline_s:
        new = {path: size for path, size in _seen(folder).items() if before.get(path) != size and size > 0}
        if new and new == last:
            return tuple(sorted(new))
        last = new
        time.sleep(1.0)
    raise EngineError(f"the engine wrote no trace into {folder}", hint=_HINT)
