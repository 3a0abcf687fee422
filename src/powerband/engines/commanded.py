"""An engine that is its command line: what SGLang, TGI, TensorRT-LLM and MLX have in common, told by a description."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerband.engines.free_memory import wait_until_free
from powerband.engines.process import HOST, take_port
from powerband.engines.server import Launch, ServerRunning, start_server, to_flags
from powerband.probes.installed import find_package
from powerband.records.config import Effective, EngineConfig, Knob, Value, cards_of
from powerband.records.errors import RequestError
from powerband.records.value import Missing
from powerband.records.workload import Workload

_GRACE_S = 20.0  # one process a card, which end one after the other


@dataclass(frozen=True)
class Program:
    """How the server is found: ``script`` on the PATH, else ``python -m module`` where ``package`` is installed.

    ``variable`` names an environment variable with a program of another environment: the script, or its Python.
    ``get`` is how to install it.
    """

    variable: str
    get: str
    script: tuple[str, ...] = ()
    package: str = ""
    module: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """What a user types."""
        return self.script or ("python", "-m", *self.module)

    def find(self) -> list[str] | None:
        """The words before the model; None where it is neither on the PATH nor installed here."""
        found = shutil.which(self.script[0]) if self.script else None
        if found is not None:
            return [found, *self.script[1:]]
        if self.package and find_package(self.package) is not None:
            return [sys.executable, "-m", *self.module]
        return None

    def command(self) -> list[str]:
        """As ``find``, the environment variable first; raises RequestError where there is no such program."""
        named = os.environ.get(self.variable, "")
        if named:
            return self._named(named)
        found = self.find()
        if found is not None:
            return found
        wanted = [f"no {self.script[0]} on the PATH"] if self.script else []
        wanted += [f"no package {self.package}"] if self.package else []
        raise RequestError(", ".join(wanted), hint=f"{self.get}, or name a program in {self.variable}")

    def _named(self, named: str) -> list[str]:
        path = shutil.which(named)
        if path is None:
            raise RequestError(
                f"{self.variable}={named!r} is no program that can be run", hint="name the server's script or a python"
            )
        if self.module and (not self.script or Path(path).name.startswith("python")):
            return [path, "-m", *self.module]
        return [path, *self.script[1:]]


_LEFT_TO_THE_ENGINE = ("auto", "none", "", 0)  # as a knob's naive value: it is not said at all


def nothing(knobs: Mapping[str, Value], folder: Path) -> list[str]:
    return []


@dataclass(frozen=True)
class Description:
    """One engine: its knobs and rules, and how they become a command line.

    ``model_flag`` "" puts the model as the first word. ``always`` are words of every command. ``names``, ``switches``
    and ``separator`` are those of ``to_flags``; ``environment`` and ``written`` are knobs that are no flags (``write``
    gives the words for the latter, after writing what they name into the run's folder). ``share_knob`` is the knob with
    the share of a card's memory; ``longest_knob`` the one that bounds a sequence. ``own_environment(port)`` are
    variables of each start.
    """

    name: str
    title: str
    program: Program
    knobs: Callable[[], tuple[Knob, ...]]
    model_flag: str
    host_flag: str
    read_effective: Callable[[str, str, EngineConfig], Effective | Missing]
    identify: Callable[[str], tuple[str, str]]
    naive: Mapping[str, Value] = field(default_factory=dict)
    refuse: Callable[[EngineConfig, int], str | None] = lambda config, longest: None
    always: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    separator: str = "-"
    environment: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)
    own_environment: Callable[[int], Mapping[str, str]] = lambda port: {}
    written: tuple[str, ...] = ()
    write: Callable[[Mapping[str, Value], Path], list[str]] = nothing
    share_knob: str = ""
    share: float = 0.9
    longest_knob: str = ""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    loads_model: bool = True
    ready_path: str = "/health"
    metrics_path: str = "/metrics"
    kind: type[ServerRunning] = ServerRunning


class Commanded:
    """Implements Engine for what ``description`` describes."""

    restartable = True

    def __init__(self, description: Description) -> None:
        self.description = description
        self.name, self.loads_model = description.name, description.loads_model
        self.extra_body: dict[str, Any] = dict(description.extra_body)

    def knobs(self) -> tuple[Knob, ...]:
        return self.description.knobs()

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        config = EngineConfig(engine=self.name, model=model, knobs=dict(self.description.naive))
        return self.complete(config, workload, frozenset())

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        return config

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        return self._refuse(config, workload.longest_tokens)

    def _refuse(self, config: EngineConfig, longest_tokens: int) -> str | None:
        knob = self.description.longest_knob
        room = int(config.knobs.get(knob, 0)) if knob else 0
        if 0 < room < longest_tokens:
            return f"{knob}={room} is shorter than the longest request of {longest_tokens} tokens"
        return self.description.refuse(config, longest_tokens)

    def start_command(self, config: EngineConfig) -> str:
        """With what a config file has to say told as a comment, since none is written here."""
        about, knobs = self.description, self._said(config.knobs)
        words = [f"{name}={knobs[name]}" for name in about.environment if name in knobs]
        command = shlex.join([*words, *about.program.shown, *self._model(config), *about.always, *self._flags(knobs)])
        told = [f"{name}: {knobs[name]}" for name in about.written if name in knobs]
        return command + (f"  # with a config file that says {', '.join(told)}" if told else "")

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float | None = None) -> ServerRunning:
        """As the protocol says; ``timeout_s`` None waits ten minutes, since weights are loaded and graphs captured."""
        about = self.description
        reason = self._refuse(config, 0)
        if reason is not None:
            raise RequestError(f"{about.title} cannot run this config: {reason}", hint="change the knob it names")
        check_model(config.model)
        command = about.program.command()
        port = take_port(int(config.knobs.get("port", 0)))
        self._wait_for_cards(config)
        log_dir.mkdir(parents=True, exist_ok=True)
        log = log_dir / "engine.log"
        words = [*command, *self._model(config), about.host_flag, HOST, *about.always]
        knobs = self._said({**config.knobs, "port": port})
        words += self._flags(knobs)
        launch = Launch(
            name=self.name,
            command=[*words, *about.write(knobs, log_dir)],
            port=port,
            env={
                **about.own_environment(port),
                **{name: str(knobs[name]) for name in about.environment if name in knobs},
            },
            ready_path=about.ready_path,
            metrics_path=about.metrics_path,
            grace_s=_GRACE_S,
        )
        return start_server(
            launch,
            log,
            600.0 if timeout_s is None else timeout_s,
            identify=about.identify,
            read_effective=lambda url, text: about.read_effective(url, text, config),
            kind=about.kind,
        )

    def _model(self, config: EngineConfig) -> list[str]:
        return [*filter(None, [self.description.model_flag]), config.model]

    def _said(self, knobs: Mapping[str, Value]) -> dict[str, Value]:
        """Without the knobs at a value that leaves the choice to the engine."""
        naive = {knob.name: knob.naive for knob in self.knobs()}
        return {
            name: value
            for name, value in knobs.items()
            if isinstance(value, bool) or value != naive.get(name) or value not in _LEFT_TO_THE_ENGINE
        }

    def _flags(self, knobs: Mapping[str, Value]) -> list[str]:
        about = self.description
        apart = {*about.environment, *about.written}
        flags = {name: value for name, value in knobs.items() if name not in apart}
        return to_flags(flags, names=about.names, switches=about.switches, separator=about.separator)

    def _wait_for_cards(self, config: EngineConfig) -> None:
        about = self.description
        if not about.share_knob:
            return
        share = float(config.knobs.get(about.share_knob, about.share))
        visible = str(config.knobs.get("CUDA_VISIBLE_DEVICES", "")) or None
        wait_until_free(min(share, about.share), cards_of(config), visible=visible)


def check_model(model: str) -> None:
    """Raise RequestError for a path that is no checkpoint; what looks like a hub id is left to the engine."""
    path = Path(model)
    if path.is_dir() and not (path / "config.json").is_file():
        raise RequestError(f"no config.json in {model!r}", hint="name the folder of a checkpoint, or a hub id")
    if not path.exists() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise RequestError(f"no model at {model!r}", hint="name the folder of a checkpoint, or a hub id")
