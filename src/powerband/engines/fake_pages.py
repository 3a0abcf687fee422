"""The fake server's pages beside completions, as each dialect has them: settings, version, metrics."""

import json
from typing import Any

import msgspec

from powerband.engines.fake_metrics import metrics_text
from powerband.engines.fake_options import Options
from powerband.engines.fake_schedule import Counters
from powerband.engines.http_server import response

FAKE_VERSION = "0.0.fake"
SETTINGS_PAGE = "/fake/settings"  # no engine's: what the fake itself runs with, whatever its dialect
_METRICS_PATH = {"tensorrt-llm": "/prometheus/metrics"}  # its /metrics holds JSON
_NO_METRICS = ("mlx",)
_FORGETTING = {"sglang": "/flush_cache", "vllm": "/reset_prefix_cache"}


def find_page(options: Options, counters: Counters, path: str) -> bytes | None:
    """The answer to GET ``path`` in ``options.dialect``; None where that engine has no such page."""
    if path == "/v1/models":
        entry = {"id": options.model, "object": "model", "created": 0, "owned_by": "powerband"}
        return _json({"object": "list", "data": [entry]})
    if path == _METRICS_PATH.get(options.dialect, "/metrics") and options.dialect not in _NO_METRICS:
        text = metrics_text(options, counters)
        return response(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
    if path == SETTINGS_PAGE:
        return _json({"settings": msgspec.to_builtins(options)})
    found = _OWN.get(options.dialect, _props)(options, counters, path)
    return None if found is None else _json(found)


def find_action(options: Options, path: str) -> bytes | None:
    """The answer to POST ``path`` where the dialect's engine is told something there; nothing is done."""
    return response(200, b"Done.\n", "text/plain") if path == _FORGETTING.get(options.dialect) else None


def _json(document: Any) -> bytes:
    return response(200, json.dumps(document).encode())


def _props(options: Options, counters: Counters, path: str) -> Any:
    """llama.cpp's."""
    if path == "/props":
        n_ctx = options.context or options.kv_tokens or 1 << 20
        page: dict[str, Any] = {"total_slots": options.slots, "default_generation_settings": {"n_ctx": n_ctx}}
        return page | {"model_path": options.model, "build_info": "powerband-fake"}
    if path == "/slots":
        return [{"id": n, "is_processing": n < counters.running} for n in range(options.slots)]
    return None


def _sglang(options: Options, counters: Counters, path: str) -> Any:
    if path in ("/get_server_info", "/server_info"):
        own = {"max_running_requests": options.slots, "chunked_prefill_size": options.chunk_tokens}
        return {"version": FAKE_VERSION, "model_path": options.model, **own, **_told(options)}
    return {"status": "ok"} if path == "/health_generate" else None


def _tgi(options: Options, counters: Counters, path: str) -> Any:
    if path == "/info":
        own = {"max_concurrent_requests": 128, "validation_workers": 2, "router": "text-generation-router"}
        return {"model_id": options.model, "version": FAKE_VERSION, **own, **_told(options)}
    return None


def _tensorrt_llm(options: Options, counters: Counters, path: str) -> Any:
    return {"/version": {"version": FAKE_VERSION}, "/metrics": []}.get(path)


def _mlx(options: Options, counters: Counters, path: str) -> Any:
    return None


def _vllm(options: Options, counters: Counters, path: str) -> Any:
    return {"version": FAKE_VERSION} if path == "/version" else _props(options, counters, path)


def _told(options: Options) -> dict[str, Any]:
    """Settings that the server was told to report (``--settings``), as a JSON object."""
    return json.loads(options.settings) if options.settings else {}


_OWN = {"sglang": _sglang, "tgi": _tgi, "tensorrt-llm": _tensorrt_llm, "mlx": _mlx, "vllm": _vllm}
