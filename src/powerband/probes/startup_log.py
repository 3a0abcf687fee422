"""What an engine said of its memory when it started, from its log."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from powerband.probes.startup import llamacpp, others, vllm
from powerband.records.config import Value
from powerband.records.errors import RequestError
from powerband.records.memory import EngineReport
from powerband.records.value import Record

_LIMIT_BYTES = 64 << 20


class StartupLog(Record):
    """An engine's own account of its memory; ``settings`` are the knobs its log names."""

    engine: str
    version: str
    report: EngineReport
    settings: dict[str, Value]
    source: str


class _Dialect(NamedTuple):
    engine: str
    marks: tuple[str, ...]
    read: Callable[[str], EngineReport]
    version: Callable[[str], str]
    settings: Callable[[str], dict[str, Value]]


_DIALECTS = (
    _Dialect("tensorrt-llm", others.TRTLLM_MARKS, others.read_trtllm, others.trtllm_version, others.trtllm_settings),
    _Dialect("tgi", others.TGI_MARKS, others.read_tgi, others.tgi_version, others.tgi_settings),
    _Dialect("sglang", others.SGLANG_MARKS, others.read_sglang, others.sglang_version, others.sglang_settings),
    _Dialect("llamacpp", llamacpp.MARKS, llamacpp.read, llamacpp.version, llamacpp.settings),
    _Dialect("vllm", vllm.MARKS, vllm.read, vllm.version, vllm.settings),
)


def read_startup_log(path: Path) -> StartupLog:
    """The log at ``path``; raises RequestError where it is missing, too large, or of no engine known here."""
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise RequestError(f"{path} is larger than any startup log", hint="cut it after the server was up")
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise RequestError(
            f"cannot read log {path}: {error.strerror}", hint="name the file the engine's output went to"
        ) from None
    return parse_startup_log(text, str(path))


def parse_startup_log(text: str, source: str = "log") -> StartupLog:
    """The figures in ``text``; raises RequestError where no engine is recognised or none of them stands in it."""
    dialect = max(_DIALECTS, key=lambda one: sum(mark in text for mark in one.marks))
    engines = ", ".join(one.engine for one in _DIALECTS)
    if not any(mark in text for mark in dialect.marks):
        raise RequestError(f"{source} is no startup log of an engine known here", hint=f"known: {engines}")
    report = dialect.read(text)
    if report == EngineReport():
        raise RequestError(
            f"{source} looks like {dialect.engine}, but names no memory",
            hint="llama.cpp prints its buffers at -v; other engines print theirs before the server is up",
        )
    return StartupLog(
        engine=dialect.engine,
        version=dialect.version(text),
        report=report,
        settings=dialect.settings(text),
        source=source,
    )
