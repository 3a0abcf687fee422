"""What a running engine says of its cache: the figures a startup log would hold, from the pages it serves."""

import re
from typing import Any

from powerband.probes.engine_metrics import vllm_cache_config
from powerband.probes.http import HttpError, base_url, find_json, read_page
from powerband.probes.startup_log import StartupLog
from powerband.records.config import Value
from powerband.records.errors import MachineError
from powerband.records.memory import EngineReport

SGLANG_PAGES = ("/server_info", "/get_server_info")  # its arguments and what came of them: the newer name first


def read_live_memory(address: str) -> StartupLog:
    """The cache of the engine at ``address``: vLLM, SGLang, TGI or llama.cpp.

    Raises RequestError for what is no address, MachineError where nothing there tells of a cache. None of these
    engines says after the start what weights, activations or graphs take.
    """
    url = base_url(address)
    for read in (_read_vllm, _read_sglang, _read_tgi, _read_llamacpp):
        found = read(url)
        if found is not None:
            return found
    raise MachineError(
        f"nothing at {url} tells of its cache",
        hint="looked for vllm:cache_config_info in /metrics, /server_info, /info and /props; is the engine up?",
    )


def _read_vllm(url: str) -> StartupLog | None:
    try:
        labels = vllm_cache_config(read_page(f"{url}/metrics").text)
    except HttpError:
        return None
    if not labels:
        return None
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    settings: dict[str, Value] = {}
    if labels.get("cache_dtype"):
        settings["kv_cache_dtype"] = labels["cache_dtype"]
    share = labels.get("gpu_memory_utilization", "")
    if re.fullmatch(r"[\d.]+", share):
        settings["gpu_memory_utilization"] = float(share)
    return StartupLog(
        engine="vllm",
        version=str(find_json(f"{url}/version").get("version", "")),
        report=EngineReport(kv_tokens=blocks * size if blocks and size else None),
        settings=settings,
        source=url,
    )


def _read_sglang(url: str) -> StartupLog | None:
    page = find_json(*(url + path for path in SGLANG_PAGES))
    if "mem_fraction_static" not in page:
        return None
    tokens = page.get("max_total_num_tokens")
    if tokens is None:
        states = page.get("internal_states")
        tokens = states[0].get("max_total_num_tokens") if isinstance(states, list) and states else None
    names = ("mem_fraction_static", "context_length", "chunked_prefill_size", "max_running_requests", "tp_size")
    settings = {name: page[name] for name in names if isinstance(page.get(name), (int, float))}
    return StartupLog(
        engine="sglang",
        version=str(page.get("version", "")),
        report=EngineReport(kv_tokens=_whole(tokens)),
        settings=settings,
        source=url,
    )


def _read_tgi(url: str) -> StartupLog | None:
    page = find_json(f"{url}/info")
    if "max_batch_total_tokens" not in page:
        return None
    limit = page.get("max_total_tokens")
    return StartupLog(
        engine="tgi",
        version=str(page.get("version", "")),
        report=EngineReport(kv_tokens=_whole(page["max_batch_total_tokens"]), max_model_len=_whole(limit)),
        settings={"max_total_tokens": limit} if isinstance(limit, int) else {},
        source=url,
    )


def _read_llamacpp(url: str) -> StartupLog | None:
    page = find_json(f"{url}/props")
    if "total_slots" not in page:
        return None
    slots = _whole(page["total_slots"])
    defaults = page.get("default_generation_settings")
    cells = _whole(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
    total = cells * slots if cells and slots else None
    return StartupLog(
        engine="llamacpp",
        version=str(page.get("build_info", "")).removeprefix("b"),
        report=EngineReport(kv_tokens=total, max_concurrency=slots, max_model_len=cells),
        settings={"n_ctx": int(total), "n_parallel": int(slots)} if total and slots else {},
        source=url,
    )


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
