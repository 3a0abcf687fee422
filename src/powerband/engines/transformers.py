"""Hugging Face Transformers in a worker process: the naive service, static batches, its own continuous batching."""

import os
from pathlib import Path
from typing import Any

from powerband.engines import transformers_knobs
from powerband.engines.hosted import PYTHON, check_model, start_command_of, start_worker
from powerband.engines.running import Running
from powerband.probes.installed import find_package
from powerband.records.config import EngineConfig, Knob
from powerband.records.errors import RequestError
from powerband.records.workload import Workload

_MODELS = "give a folder with config.json, a hub id that is in the cache, or a .gguf file"


class Transformers:
    """Implements Engine for ``python -m powerband.engines.worker transformers``."""

    name = "transformers"
    extra_body: dict[str, Any] = {"ignore_eos": True}  # noqa: RUF012 - a constant that the protocol declares as a field
    loads_model = True
    restartable = True

    def knobs(self) -> tuple[Knob, ...]:
        return transformers_knobs.transformers_knobs()

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        """One request at a time, tokenised in line: what a first script does."""
        return EngineConfig(engine=self.name, model=model, knobs={"batching": "none"})

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        """A static batch has sequences to hold, and only a static one does."""
        static, size = config.knobs.get("batching") == "static", int(config.knobs.get("batch_size", 1))
        if static and size < 2 and "batch_size" not in fixed:
            return config.replace(batch_size=8)
        if not static and size > 1 and "batch_size" not in fixed:
            return config.replace(batch_size=1)
        return config

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        return transformers_knobs.refuse(config, workload.longest_tokens)

    def start_command(self, config: EngineConfig) -> str:
        return start_command_of(config)

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float = 120.0) -> Running:
        reason = transformers_knobs.refuse(config, 0)
        if reason is not None:
            raise RequestError(f"transformers cannot run this config: {reason}", hint="change the knob it names")
        check_model(config.model, _MODELS)
        python = os.environ.get(PYTHON)
        if python is None:
            for package in ("torch", "transformers"):
                if find_package(package) is None:
                    hint = f"pip install 'powerband[transformers]', or name a python that has it in {PYTHON}"
                    raise RequestError(f"{package} is not installed", hint=hint)
        threads = int(config.knobs.get("num_threads", 0))
        env = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        return start_worker(config, log_dir, timeout_s, python=python, env=env)
