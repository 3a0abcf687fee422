"""The door for engines: two small protocols, the built-in engines, and how others are found."""

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from powerband.probes.startup_log import StartupLog
from powerband.records.config import Effective, EngineConfig, Knob
from powerband.records.errors import unknown_name
from powerband.records.sample import EngineSample
from powerband.records.value import Missing
from powerband.records.workload import Workload


class RunningEngine(Protocol):
    """A server that answers at ``url``; ``pid`` is the root of its processes, None where they cannot be seen."""

    url: str
    pid: int | None
    model_id: str  # the name to put into a request
    version: str
    startup_s: float
    api_key: str  # that its pages and requests need; "" for none

    def effective(self) -> Effective | Missing:
        """The settings the server says it runs with, beside those asked for."""

    def sample(self, t_ns: int) -> EngineSample:
        """One scrape of its metrics, stamped ``t_ns``; a scrape that fails gives Missing values, never an exception."""

    def alive(self) -> bool: ...

    def log_tail(self, lines: int = 20) -> tuple[str, ...]: ...

    def fault(self) -> str | None:
        """What its log says broke it since it was up, in one line; None where it says nothing of the kind."""

    def forget(self) -> bool:
        """Drop what earlier requests left in its caches; False where that cannot be done while it runs."""

    def memory(self) -> StartupLog | Missing:
        """What it said of its memory when it started."""

    def stop(self) -> None:
        """End the whole process group and wait until it is gone; safe to call twice; does nothing when attached."""


class Engine(Protocol):
    """An engine that powerband can drive."""

    name: str
    extra_body: dict[str, Any]  # fields a request needs so that the answer has the asked length, such as ignore_eos
    loads_model: bool  # whether it reads a checkpoint from this machine, so that a ledger can be made
    restartable: bool  # whether its settings can be changed from here; False for a server we only attach to

    def knobs(self) -> tuple[Knob, ...]: ...

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        """The settings of "it runs": nothing tuned, but able to hold the workload's longest request."""

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        """``config`` with knobs that follow from others (n_ctx from n_parallel) set, except the ``fixed`` ones."""

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        """Why this config cannot serve this workload (a rule of the engine), or None."""

    def start_command(self, config: EngineConfig) -> str:
        """What a user types to run the engine with these settings, without powerband."""

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float = 120.0) -> RunningEngine:
        """Start a server and wait until it answers.

        Raises EngineError with the last lines of its log where it dies or does not answer in time, and RequestError
        where the port is taken or the engine is not installed (the hint names the extra).
        """


BUILT_IN = {
    "llamacpp": "powerband.engines.llamacpp:LlamaCpp",
    "vllm": "powerband.engines.vllm:Vllm",
    "sglang": "powerband.engines.sglang:Sglang",
    "tgi": "powerband.engines.tgi:Tgi",
    "tensorrt-llm": "powerband.engines.tensorrt_llm:TensorRtLlm",
    "mlx": "powerband.engines.mlx:Mlx",
    "transformers": "powerband.engines.transformers:Transformers",
    "openvino": "powerband.engines.openvino:OpenVino",
    "openai": "powerband.engines.openai:OpenAI",
    "fake": "powerband.engines.fake:Fake",
}


def engine_names() -> list[str]:
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group="powerband.engines"))})


def get_engine(name: str) -> Engine:
    """The engine called ``name``; its module is imported here, when it is used."""
    target = BUILT_IN.get(name)
    if target is None:
        points = {point.name: point.value for point in entry_points(group="powerband.engines")}
        if name not in points:
            raise unknown_name("engine", name, engine_names())
        target = points[name]
    module, _, attribute = target.partition(":")
    engine: Engine = getattr(import_module(module), attribute)()
    return engine
