"""A server started from a command line: flags from knobs, the start until it answers, and what is handed back."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from powerband.engines.process import HOST, ServerProcess, start_process, wait_ready
from powerband.engines.running import Running
from powerband.engines.server_faults import Fault, read_fault
from powerband.probes.startup_log import StartupLog, parse_startup_log
from powerband.records.config import Effective, Value
from powerband.records.errors import EngineError, RequestError
from powerband.records.value import Missing


@dataclass(frozen=True)
class Launch:
    """How to start one server.

    ``ready_path`` says 200 once requests are served; ``metrics_path`` is its Prometheus page. ``grace_s``: how long it
    gets to end by itself.
    """

    name: str
    command: list[str]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"
    metrics_path: str = "/metrics"
    grace_s: float = 5.0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


class ServerRunning(Running):
    """Adds what the log says. ``log`` from byte ``log_start`` on is this server's; it was up at byte ``log_ready``."""

    log: Path
    log_start: int
    log_ready: int

    @staticmethod
    def read_fault(log: Path, start: int, *, served: bool) -> Fault | None:
        """What broke it, by its log from byte ``start`` on; ``served``: it was up by then."""
        return read_fault(log, start)

    def fault(self) -> str | None:
        found = self.read_fault(self.log, self.log_ready, served=True)
        return None if found is None else found.summary

    def memory(self) -> StartupLog | Missing:
        try:
            return parse_startup_log(_read(self.log, self.log_start), str(self.log))
        except (OSError, RequestError) as error:
            return Missing(missing=str(error))


def start_server(
    launch: Launch,
    log: Path,
    timeout_s: float,
    *,
    identify: Callable[[str], tuple[str, str]],
    read_effective: Callable[[str, str], Effective | Missing],
    kind: type[ServerRunning] = ServerRunning,
) -> ServerRunning:
    """Start it and wait until it answers; ``identify(url)`` gives the model's name for requests and the version.

    ``read_effective(url, text)`` gets the log of this start. ``kind`` is what an adapter hands back where its engine
    can be told more than others. Raises EngineError that names the fault found in the log, with the lines up to it,
    where it dies or stays silent; it is stopped before any error leaves.
    """
    began_s = time.monotonic()
    start = log.stat().st_size if log.exists() else 0  # runs in one folder share a log
    process = start_process(launch.command, log=log, name=launch.name, env=launch.env, grace_s=launch.grace_s)
    _wait(process, launch, timeout_s, lambda: kind.read_fault(log, start, served=False))
    started_s = time.monotonic() - began_s
    model_id, version = _identify(process, launch.url, identify)
    running = kind(
        launch.url,
        model_id=model_id,
        version=version,
        process=process,
        startup_s=started_s,
        metrics_path=launch.metrics_path,
        read_effective=lambda: read_effective(launch.url, _read(log, start)),
    )
    running.log, running.log_start, running.log_ready = log, start, log.stat().st_size
    return running


def _read(log: Path, start: int) -> str:
    return log.read_bytes()[start:].decode("utf-8", "replace")


def _wait(process: ServerProcess, launch: Launch, timeout_s: float, find: Callable[[], Fault | None]) -> None:
    try:
        wait_ready(process, launch.url, timeout_s, path=launch.ready_path, name=launch.name)
    except EngineError as error:
        fault = find()
        if fault is None:
            raise
        raise EngineError(f"{error.message}: {fault.summary}", hint=error.hint, log_tail=fault.lines) from None


def _identify(process: ServerProcess, url: str, identify: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
    try:
        return identify(url)
    except BaseException:
        process.stop()
        raise


def to_flags(
    knobs: Mapping[str, Value],
    *,
    names: Mapping[str, str] | None = None,
    switches: Mapping[str, tuple[str, str]] | None = None,
    separator: str = "-",
) -> list[str]:
    """Command line of ``knobs``: ``max_num_seqs=8`` gives ``--max-num-seqs 8``.

    A bool gives its bare flag where true and nothing where false; ``switches`` names the pair of flags (on, off) of one
    that has both, "" for none. ``names`` gives the flags that do not follow from the knob's name. An empty text is left
    out.
    """
    flags: list[str] = []
    for name, value in knobs.items():
        flag = (names or {}).get(name, "--" + name.replace("_", separator))
        if name in (switches or {}):
            on, off = (switches or {})[name]
            flags += [word for word in ((on if value else off),) if word]
        elif isinstance(value, bool):
            flags += [flag] if value else []
        elif value != "":
            flags += [flag, str(value)]
    return flags


def logged_settings(text: str) -> dict[str, Value]:
    """The knobs that a startup log names; none where it is not one."""
    with contextlib.suppress(RequestError):
        return dict(parse_startup_log(text, "its log").settings)
    return {}
