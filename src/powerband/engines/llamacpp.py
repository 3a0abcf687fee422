"""llama.cpp's server: a ``llama-server`` on the PATH where there is one, else the one in the xllamacpp wheel."""

import functools
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from powerband.engines.llamacpp_knobs import (
    CONTEXT_STEP_TOKENS,
    environment_of,
    llamacpp_knobs,
    start_command_of,
    to_flags,
)
from powerband.engines.process import HOST, start_process, take_port, wait_ready
from powerband.engines.running import Running, compare_settings, served_model
from powerband.probes.host import physical_cores, usable_cores
from powerband.probes.http import read_json
from powerband.probes.installed import find_llamacpp
from powerband.records.config import Effective, EngineConfig, Knob, Value
from powerband.records.errors import RequestError
from powerband.records.workload import Workload

_SPARE_TOKENS = 8  # a start token, a template's ends, and the one cell that llama.cpp never fills
_QUANTISED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
# Flags that llama-server has learnt lately, used where its --help lists them.
_WANTED = {
    "--fit": ["--fit", "off"],
    "--props": ["--props"],
    "--slots": ["--slots"],
    "--verbosity": ["--verbosity", "4"],
}


class LlamaCpp:
    """Implements Engine for llama.cpp's OpenAI-compatible server."""

    name = "llamacpp"
    extra_body: dict[str, Any] = {"ignore_eos": True}  # noqa: RUF012 - a constant that the protocol declares as a field
    loads_model = True
    restartable = True

    def knobs(self) -> tuple[Knob, ...]:
        return llamacpp_knobs()

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        config = EngineConfig(
            engine=self.name, model=model, knobs={"n_parallel": 1, "n_threads": physical_cores(), "n_ctx": 0}
        )
        return self.complete(config, workload, frozenset())

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        """Give every slot room for the longest request, and make the micro-batch no larger than the batch."""
        knobs: dict[str, Value] = {}
        if "n_ctx" not in fixed:
            knobs["n_ctx"] = _int(config, "n_parallel", 1) * slot_context(workload)
        batch, micro = _int(config, "n_batch", 2048), _int(config, "n_ubatch", 512)
        if micro > batch and "n_ubatch" not in fixed and "n_batch" in config.knobs:
            knobs["n_ubatch"] = batch
        elif micro > batch and "n_batch" not in fixed:
            knobs["n_batch"] = micro
        return config.replace(**knobs)

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        return refuse(config, workload.longest_tokens)

    def start_command(self, config: EngineConfig) -> str:
        return start_command_of(config)

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float = 120.0) -> Running:
        reason = refuse(config, 0)
        if reason is not None:
            raise RequestError(f"llama.cpp cannot run this config: {reason}", hint="change the knob it names")
        _check_model(config.model)
        command, version = _program()
        port = take_port(_int(config, "port", 0))
        knobs: dict[str, Value] = {**config.knobs, "port": port}
        log = log_dir / "engine.log"
        began_s = time.monotonic()
        process = start_process(
            [*command, "--model", config.model, "--host", HOST, *to_flags(knobs), "--metrics"],
            log=log,
            name=self.name,
            env=environment_of(config.knobs),
        )
        url = f"http://{HOST}:{port}"
        wait_ready(process, url, timeout_s, name=self.name)
        started_s = time.monotonic() - began_s
        try:
            model_id, build = _identity(url)
        except BaseException:
            process.stop()
            raise
        return Running(
            url,
            model_id=model_id,
            version=f"{version}, build {build}",
            process=process,
            startup_s=started_s,
            read_effective=lambda: read_effective(url, log, config),
        )


def slot_context(workload: Workload) -> int:
    """Tokens one slot must hold for the longest request, rounded up as llama.cpp does."""
    wanted = workload.longest_tokens + _SPARE_TOKENS
    return -(-wanted // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS


def refuse(config: EngineConfig, longest_tokens: int) -> str | None:
    """The rule of llama.cpp that this config breaks, in words, or None; ``longest_tokens`` 0 skips the context."""
    slots, context = _int(config, "n_parallel", 1), _int(config, "n_ctx", 0)
    slot = context if config.knobs.get("kv_unified") else context // slots
    if context > 0 and slot < longest_tokens:
        return f"a slot holds {slot} tokens (n_ctx={context}, n_parallel={slots}), the longest request {longest_tokens}"
    batch, micro = _int(config, "n_batch", 2048), _int(config, "n_ubatch", 512)
    if micro > batch:
        return f"n_ubatch={micro} is larger than n_batch={batch}"
    if slots > batch:
        return f"n_parallel={slots} is larger than n_batch={batch}: a step could not hold one token of each slot"
    cores = usable_cores()
    for name in ("n_threads", "n_threads_batch"):
        threads = _int(config, name, 1)
        if threads > cores:
            return f"{name}={threads} is more than the {cores} cores here: its threads would spin on shared cores"
    if config.knobs.get("cache_type_v", "f16") in _QUANTISED and config.knobs.get("flash_attn") == "off":
        return f"cache_type_v={config.knobs['cache_type_v']} needs flash attention, and flash_attn is off"
    return None


def _int(config: EngineConfig, name: str, default: int) -> int:
    return int(config.knobs.get(name, default))


def _check_model(model: str) -> None:
    path = Path(model)
    if not path.is_file():
        raise RequestError(f"no model file at {model!r}", hint="llama.cpp loads a .gguf file: give its path")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise RequestError(f"{model!r} is not a GGUF file", hint="llama.cpp loads a .gguf file: give its path")


def _program() -> tuple[list[str], str]:
    """The command that starts the server, and its version."""
    found = find_llamacpp()
    if found is None:
        raise RequestError(
            "llama.cpp is not installed: no llama-server on the PATH, no xllamacpp",
            hint="pip install 'powerband[llamacpp]'",
        )
    if found.name != "llama-server":
        return [sys.executable, "-m", "powerband.engines.llamacpp_server"], f"{found.name} {found.version}"
    known = _help_of(found.path)
    extra = [word for flag, words in _WANTED.items() if flag in known for word in words]
    return [found.path, *extra], found.name


@functools.cache
def _help_of(binary: str) -> str:
    try:
        shown = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=20, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return shown.stdout + shown.stderr


def _identity(url: str) -> tuple[str, str]:
    return served_model(url), str(read_json(url + "/props", timeout_s=10).get("build_info", "unknown"))


_LOG_SETTINGS: dict[str, str] = {
    "n_ctx": r"llama_context: n_ctx\s+= (\d+)",
    "n_batch": r"llama_context: n_batch\s+= (\d+)",
    "n_ubatch": r"llama_context: n_ubatch\s+= (\d+)",
    "n_threads": r"system_info: n_threads = (\d+)",
    "n_threads_batch": r"system_info: n_threads = \d+ \(n_threads_batch = (\d+)\)",
    "kv_unified": r"llama_context: kv_unified\s+= (true|false)",
    "cache_type_k": r"llama_kv_cache: size = .*\bK \((\w+)\)",
    "cache_type_v": r"llama_kv_cache: size = .*\bV \((\w+)\)",
    "spec_type": r"adding speculative implementation '([\w-]+)'",
    "flash_attn": r"(?:resolve_fused_ops: Flash Attention |flash_attn\s+= |Flash Attention was auto, set to )(\w+)",
}
_FLASH = {"enabled": "on", "disabled": "off", "1": "on", "0": "off"}


def settings_from_log(text: str) -> dict[str, Value]:
    """The settings that llama.cpp's startup log states (verbosity 4); flash attention as it was resolved."""
    found: dict[str, Value] = {}
    for name, pattern in _LOG_SETTINGS.items():
        matches = re.findall(pattern, text)
        if not matches:
            continue
        word = matches[-1]  # what was resolved comes after what was asked
        found[name] = {"true": True, "false": False}.get(word, int(word) if word.isdecimal() else word)
        if name == "flash_attn":
            found[name] = _FLASH.get(word, word)
    if "no implementations specified for speculative" in text:
        found["spec_type"] = "none"
    return found


def read_effective(url: str, log: Path, config: EngineConfig) -> Effective:
    """What /props and the startup log say; the context per slot counts as n_ctx only by the log's own total."""
    props = read_json(url + "/props", timeout_s=10)
    settings = settings_from_log(log.read_text(errors="replace"))
    runs: dict[str, Value] = {**settings, "n_parallel": int(props["total_slots"])}
    runs["n_ctx_slot"] = int(props["default_generation_settings"]["n_ctx"])
    return compare_settings(config.knobs, runs, "/props and startup log")
