"""Any server that speaks the OpenAI API, ours or not: attach to it, never start or stop it."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from powerband.engines.running import Running, compare_settings, plain_values
from powerband.probes.engine_metrics import recognise, vllm_cache_config
from powerband.probes.host import serving_pid
from powerband.probes.http import HttpError, Reply, base_url, find_json, read_page
from powerband.probes.live_memory import SGLANG_PAGES
from powerband.probes.prometheus import parse_metrics
from powerband.records.config import Effective, EngineConfig, Knob, Value
from powerband.records.errors import EngineError, RequestError
from powerband.records.value import Missing, Record
from powerband.records.workload import Workload

KEY_VARIABLE = "OPENAI_API_KEY"


class Attached(Record):
    """What a server tells of itself: its models, and whose /metrics it writes (None: not known or not there)."""

    url: str
    models: tuple[str, ...]
    dialect: str | None
    version: str
    metrics_path: str = "/metrics"


class OpenAI:
    """Implements Engine for a server that runs already: its ``url`` is a knob, and so is the ``model`` to ask for.

    The key is read from the environment variable OPENAI_API_KEY, so that it gets into no journal.
    """

    name = "openai"
    extra_body: dict[str, Any] = {"ignore_eos": True}  # noqa: RUF012 - a constant that the protocol declares as a field
    loads_model = False
    restartable = False

    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob(name="url", kind="text", naive="", help="where the server answers, such as http://localhost:8000"),
            Knob(
                name="served_model", kind="text", naive="", help="model name to send; the server's first where not set"
            ),
        )

    def naive(self, model: str, workload: Workload) -> EngineConfig:
        return EngineConfig(engine=self.name, model=model, knobs={})

    def complete(self, config: EngineConfig, workload: Workload, fixed: frozenset[str]) -> EngineConfig:
        return config

    def refuses(self, config: EngineConfig, workload: Workload) -> str | None:
        return None if config.knobs.get("url") else "no url is set: say which server with --set url=http://..."

    def start_command(self, config: EngineConfig) -> str:
        return f"# attached to {config.knobs.get('url')}: how it was started is not known here"

    def start(self, config: EngineConfig, log_dir: Path, timeout_s: float = 120.0) -> Running:
        url = str(config.knobs.get("url", "")).strip()
        if not url:
            raise RequestError("engine openai has no url to attach to", hint="add --set url=http://localhost:8000")
        key = os.environ.get(KEY_VARIABLE, "")
        attached = attach(url, api_key=key, timeout_s=min(timeout_s, 10.0))
        wanted = str(config.knobs.get("served_model", ""))
        if wanted and attached.models and wanted not in attached.models:
            raise RequestError(
                f"{attached.url} does not serve model {wanted!r}", hint="it serves " + ", ".join(attached.models[:8])
            )
        running = Running(
            attached.url,
            model_id=wanted or next(iter(attached.models), config.model),
            version=attached.version,
            startup_s=0.0,
            api_key=key,
            metrics_path=attached.metrics_path,
            read_effective=lambda: read_settings(attached.url, key, config.knobs),
        )
        running.pid = serving_pid(attached.url)  # to watch, not to stop
        return running


def attach(url: str, *, api_key: str = "", timeout_s: float = 10.0) -> Attached:
    """Ask a server what it is.

    Raises RequestError where the address is none, the key is refused, or it is no OpenAI-compatible server, and
    EngineError where nothing answers or the answer is broken.
    """
    base = base_url(url)
    try:
        reply = read_page(base + "/v1/models", api_key=api_key, timeout_s=timeout_s)
    except HttpError as error:
        where = urlsplit(base).netloc
        raise EngineError(error.message, hint=f"is the server up? try: curl {base}/v1/models ({where})") from None
    _check(reply, base, bool(api_key))
    dialect, metrics_path = _dialect(base, api_key)
    return Attached(
        url=base,
        models=_models(reply, base),
        dialect=dialect,
        version=_version(base, api_key, dialect),
        metrics_path=metrics_path,
    )


def _check(reply: Reply, base: str, with_key: bool) -> None:
    if reply.status in (401, 403):
        said = "the key was refused" if with_key else "it wants a key"
        raise RequestError(
            f"{base} answered HTTP {reply.status}: {said}", hint=f"set the environment variable {KEY_VARIABLE}"
        )
    if reply.status in (404, 405):
        raise RequestError(
            f"{base} is not an OpenAI-compatible server: /v1/models answered HTTP {reply.status}",
            hint="give the address below which /v1/models and /v1/completions lie",
        )
    if reply.status != 200:
        raise EngineError(f"{base}/v1/models answered HTTP {reply.status}", hint="is the server still loading?")


def _models(reply: Reply, base: str) -> tuple[str, ...]:
    try:
        document = msgspec.json.decode(reply.body)
        return tuple(str(entry["id"]) for entry in document["data"])
    except (msgspec.DecodeError, TypeError, KeyError):
        raise RequestError(
            f"{base} is not an OpenAI-compatible server: /v1/models is no list of models",
            hint="give the address below which /v1/models and /v1/completions lie",
        ) from None


def _optional(url: str, api_key: str) -> Reply | None:
    try:
        reply = read_page(url, api_key=api_key, timeout_s=5.0)
    except HttpError:
        return None
    return reply if reply.status == 200 else None


# TensorRT-LLM's /metrics holds JSON; its Prometheus page is the second.
_METRICS_PATHS = ("/metrics", "/prometheus/metrics")


def _dialect(base: str, api_key: str) -> tuple[str | None, str]:
    """Whose metrics the server writes, and where."""
    for path in _METRICS_PATHS:
        page = _optional(base + path, api_key)
        found = None if page is None else recognise(parse_metrics(page.text))
        if found is not None:
            return found, path
    return None, _METRICS_PATHS[0]


# Where servers tell their version: vLLM and TensorRT-LLM /version, SGLang /server_info, TGI /info, llama.cpp /props.
_VERSIONS = (
    ("vLLM", "/version", "version"),
    ("TGI", "/info", "version"),
    ("SGLang", "/server_info", "version"),
    ("SGLang", "/get_server_info", "version"),  # its older name
    ("llama.cpp", "/props", "build_info"),
)


def _version(base: str, api_key: str, dialect: str | None) -> str:
    for name, path, field in _VERSIONS:
        document = find_json(base + path, api_key=api_key)
        if isinstance(document.get(field), str):
            shown = "TensorRT-LLM" if path == "/version" and dialect == "tensorrt-llm" else name
            return f"{shown} {document[field]}"
    return "unknown"


def read_settings(base: str, api_key: str, asked: dict[str, Value]) -> Effective | Missing:
    """What the server tells: llama.cpp at /props, SGLang at /server_info, TGI at /info, vLLM in its metrics."""
    props = find_json(base + "/props", api_key=api_key)
    if "total_slots" in props:
        context = props.get("default_generation_settings", {}).get("n_ctx")
        runs: dict[str, Value] = {"n_parallel": int(props["total_slots"])}
        if isinstance(context, int):
            runs["n_ctx_slot"] = context
        return compare_settings(asked, runs, "/props")
    for path in (*SGLANG_PAGES, "/info"):
        if plain := plain_values(find_json(base + path, api_key=api_key)):
            return compare_settings(asked, plain, path)
    page = _optional(base + "/metrics", api_key)
    if page is not None and (labels := vllm_cache_config(page.text)):
        return compare_settings(asked, dict(labels), "/metrics vllm:cache_config_info")
    return Missing(missing="the server tells its settings neither at /props, /server_info, /info nor in /metrics")
