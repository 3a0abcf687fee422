"""The fake engine: a real HTTP server with known token times, to test with and to try things on."""

import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Literal

from powerband.engines.fake_options import Options, check_options, to_argv
from powerband.engines.fake_pages import SETTINGS_PAGE
from powerband.engines.process import HOST, start_process, take_port, wait_ready
from powerband.engines.running import Running, compare_settings
from powerband.probes.http import read_json
from powerband.records.config import Effective, EngineConfig, Knob, Value
from powerband.records.finding import Cause
from powerband.records.workload import Workload

# Knobs that a tuner may turn; the rest describe the machine that is being imitated, or its faults.
_GRIDS: dict[str, tuple[Value, ...]] = {
    "slots": (1, 2, 4, 8, 16, 32),
    "chunk_tokens": (64, 128, 256, 512, 1024),
    "static": (False,),
    "bits": (16, 8, 4),
}
_ADDRESSES: dict[str, tuple[Cause, ...]] = {
    "slots": ("no_batching", "queueing"),
    "chunk_tokens": ("head_of_line_blocking",),
    "static": ("static_batching", "head_of_line_blocking"),
    "kv_tokens": ("kv_pressure",),
    "bits": ("memory_bandwidth_bound",),
}
_NOT_KNOBS = {"host", "model"}
_NUMERICS = {"bits"}


class Fake:
    """Implements Engine for ``python -m powerband.engines.fake_server``."""

    name = "fake"
    extra_body: dict[str, Any] = {"ignore_eos": True}  # noqa: RUF012 - a constant that the protocol declares as a field
    loads_model = False
    restartable = True

    def knobs(self) -> tuple[Knob, ...]:
        return tuple(_knob(item) for item in dataclasses.fields(Options) if item.name not in _NOT_KNOBS)

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        return EngineConfig(engine=self.name, model=model, knobs={"slots": 1})

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        for name in ("context", "kv_tokens"):
            room = int(config.knobs.get(name, 0))
            if 0 < room < workload.longest_tokens:
                return f"{name}={room} cannot hold the longest request of {workload.longest_tokens} tokens"
        return None

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        return config

    def start_command(self, config: EngineConfig) -> str:
        return shlex.join(["python", "-m", "powerband.engines.fake_server", *_argv(config, config.knobs)])

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float = 120.0) -> Running:
        values: dict[str, Any] = {**config.knobs, "port": take_port(int(config.knobs.get("port", 0)))}
        check_options(Options(**values))
        url = f"http://{HOST}:{values['port']}"
        began_s = time.monotonic()
        process = start_process(
            [sys.executable, "-m", "powerband.engines.fake_server", *_argv(config, values)],
            log=log_dir / "engine.log",
            name=self.name,
        )
        wait_ready(process, url, timeout_s, name=self.name)
        return Running(
            url,
            model_id=config.model,
            version="powerband-fake",
            process=process,
            startup_s=time.monotonic() - began_s,
            api_key=str(config.knobs.get("api_key", "")),
            read_effective=lambda: _effective(config, url),
        )


def _argv(config: EngineConfig, values: dict[str, Any]) -> list[str]:
    return to_argv({"model": config.model, **values})


def _effective(config: EngineConfig, url: str) -> Effective:
    key = str(config.knobs.get("api_key", ""))
    settings = read_json(url + SETTINGS_PAGE, api_key=key)["settings"]
    return compare_settings(config.knobs, settings, SETTINGS_PAGE)


def _knob(item: Any) -> Knob:
    choices = item.metadata["choices"] or ()
    kinds: dict[type, Literal["bool", "int", "float", "choice", "text"]] = {bool: "bool", int: "int", float: "float"}
    return Knob(
        name=item.name,
        kind=kinds.get(item.type, "choice" if choices else "text"),
        help=item.metadata["help"],
        naive=1 if item.name == "slots" else item.default,
        grid=_GRIDS.get(item.name, ()),
        choices=choices,
        addresses=_ADDRESSES.get(item.name, ()),
        numerics=item.name in _NUMERICS,
    )
