"""OpenVINO GenAI's continuous batching pipeline in a worker process; it reads GGUF files and OpenVINO folders."""

import os
from pathlib import Path
from typing import Any

from powerband.engines import openvino_knobs
from powerband.engines.hosted import PYTHON, start_command_of, start_worker
from powerband.engines.running import Running
from powerband.probes.installed import find_package
from powerband.records.config import EngineConfig, Knob
from powerband.records.errors import RequestError
from powerband.records.workload import Workload

_MODELS = "OpenVINO loads a .gguf file, or a folder with openvino_model.xml"


class OpenVino:
    """Implements Engine for ``python -m powerband.engines.worker openvino``."""

    name = "openvino"
    extra_body: dict[str, Any] = {"ignore_eos": True}  # noqa: RUF012 - a constant that the protocol declares as a field
    loads_model = True
    restartable = True

    def knobs(self) -> tuple[Knob, ...]:
        return openvino_knobs.openvino_knobs()

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        return EngineConfig(engine=self.name, model=model, knobs={"max_num_seqs": 1, "max_num_batched_tokens": 256})

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        """A step holds a token of each sequence; without split prompts it holds the longest one."""
        knobs = config.knobs
        seqs, tokens = int(knobs.get("max_num_seqs", 1)), int(knobs.get("max_num_batched_tokens", 256))
        least = max(seqs, workload.longest_tokens if knobs.get("dynamic_split_fuse") is False else 0)
        if tokens < least and "max_num_batched_tokens" not in fixed:
            return config.replace(max_num_batched_tokens=least)
        return config

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        return openvino_knobs.refuse(config, workload.longest_tokens)

    def start_command(self, config: EngineConfig) -> str:
        return start_command_of(config)

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float = 120.0) -> Running:
        reason = openvino_knobs.refuse(config, 0)
        if reason is not None:
            raise RequestError(f"OpenVINO cannot run this config: {reason}", hint="change the knob it names")
        check_model(config.model)
        python = os.environ.get(PYTHON)
        if python is None and find_package("openvino_genai") is None:
            hint = f"pip install 'powerband[openvino]', or name a python that has it in {PYTHON}"
            raise RequestError("openvino-genai is not installed", hint=hint)
        return start_worker(config, log_dir, timeout_s, python=python, env={})


def check_model(model: str) -> None:
    path = Path(model)
    if path.is_dir() and (path / "openvino_model.xml").is_file():
        return
    if not path.is_file() or path.suffix != ".gguf":
        raise RequestError(f"{model!r} is no model that OpenVINO loads", hint=_MODELS)
