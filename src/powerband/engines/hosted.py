"""Starting a worker of ours: what the adapters of in-process engines share."""

import os
import shlex
import sys
from pathlib import Path

import powerband
from powerband.engines.process import HOST, take_port
from powerband.engines.running import Running, compare_settings, served_model
from powerband.engines.server import Launch, start_server
from powerband.probes.http import read_json
from powerband.records.config import Effective, EngineConfig
from powerband.records.errors import RequestError

# Where the engine's packages are in another environment than powerband's own.
PYTHON = "POWERBAND_PYTHON"


def settings_of(config: EngineConfig) -> list[str]:
    """The knobs as the worker reads them, but the port."""
    words: list[str] = []
    for name, value in sorted(config.knobs.items()):
        if name != "port":
            words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return words


def command_of(config: EngineConfig, port: int, python: str = "python") -> list[str]:
    worker = [python, "-m", "powerband.engines.worker", config.engine, "--model", config.model]
    return [*worker, "--host", HOST, "--port", str(port), *settings_of(config)]


def start_command_of(config: EngineConfig) -> str:
    return shlex.join(command_of(config, int(config.knobs.get("port", 0)) or 8000))


def start_worker(
    config: EngineConfig, log_dir: Path, timeout_s: float, *, python: str | None, env: dict[str, str]
) -> Running:
    """Start the worker of ``config`` with ``python`` (None: this one) and wait until its model answers."""
    port = take_port(int(config.knobs.get("port", 0)))
    if python is not None:
        ours = str(Path(powerband.__file__).parents[1])
        env = {"PYTHONPATH": os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")])), **env}
    launch = Launch(
        name=config.engine,
        command=command_of(config, port, python or sys.executable),
        port=port,
        env={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", **env},
    )
    return start_server(
        launch,
        log_dir / "engine.log",
        timeout_s,
        identify=_identity,
        read_effective=lambda url, _: read_effective(url, config),
    )


def check_model(model: str, kinds: str) -> None:
    """Raise RequestError where a path names nothing; a hub id is left to the library."""
    path = Path(model)
    looks_like_path = path.suffix == ".gguf" or model.startswith((".", "/", "~"))
    if looks_like_path and not path.exists():
        raise RequestError(f"no model at {model!r}", hint=kinds)
    if path.is_dir() and not (path / "config.json").is_file():
        raise RequestError(f"no config.json in {model!r}", hint=kinds)


def _identity(url: str) -> tuple[str, str]:
    return served_model(url), str(read_json(url + "/props", timeout_s=30)["version"])


def read_effective(url: str, config: EngineConfig) -> Effective:
    """What the worker's /props say."""
    return compare_settings(config.knobs, read_json(url + "/props", timeout_s=30)["settings"], "/props")
