"""A live engine's cache, from the pages that four engines serve, on loopback."""

import json
from collections.abc import Iterator
from typing import ClassVar

import pytest

from powerband.probes.live_memory import read_live_memory
from powerband.records.errors import MachineError, RequestError
from tests.support.answering import serving


class Pages:
    """What the server has by path: 404 for the rest."""

    pages: ClassVar[dict[str, str]] = {}


@pytest.fixture
def server() -> Iterator[str]:
    Pages.pages = {}
    with serving(lambda path, _: (200, Pages.pages[path]) if path in Pages.pages else (404, "")) as url:
        yield url


def test_vllm_by_its_metrics(server: str) -> None:
    Pages.pages = {
        "/metrics": "# HELP x\n"
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",'
        'gpu_memory_utilization="0.9",num_gpu_blocks="2356"} 1.0\n',
        "/version": json.dumps({"version": "0.11.0"}),
    }
    found = read_live_memory(server)
    assert (found.engine, found.version, found.report.kv_tokens) == ("vllm", "0.11.0", 2356 * 16)
    assert found.settings == {"kv_cache_dtype": "auto", "gpu_memory_utilization": 0.9}


def test_sglang_by_its_server_info(server: str) -> None:
    page = {
        "mem_fraction_static": 0.85,
        "tp_size": 4,
        "version": "0.5.1",
        "internal_states": [{"max_total_num_tokens": 46611}],
    }
    Pages.pages = {"/get_server_info": json.dumps(page)}
    found = read_live_memory(server)
    assert (found.engine, found.report.kv_tokens) == ("sglang", 46611)
    assert found.settings == {"mem_fraction_static": 0.85, "tp_size": 4}


def test_tgi_by_its_info(server: str) -> None:
    Pages.pages = {
        "/info": json.dumps({"max_batch_total_tokens": 801568, "max_total_tokens": 4096, "version": "3.0.1"})
    }
    found = read_live_memory(server)
    assert (found.engine, found.version, found.report.kv_tokens) == ("tgi", "3.0.1", 801568)


def test_llamacpp_by_its_props(server: str) -> None:
    page = {"total_slots": 4, "default_generation_settings": {"n_ctx": 1024}, "build_info": "b6500-abc"}
    Pages.pages = {"/props": json.dumps(page)}
    found = read_live_memory(server)
    assert (found.engine, found.report.kv_tokens) == ("llamacpp", 4096)
    assert found.settings == {"n_ctx": 4096, "n_parallel": 4}


def test_what_tells_nothing_is_said_so(server: str) -> None:
    Pages.pages = {"/metrics": "python_info 1\n", "/info": "[]", "/props": "{"}
    with pytest.raises(MachineError, match="tells of its cache") as caught:
        read_live_memory(server)
    assert "/server_info" in caught.value.hint
    with pytest.raises(RequestError):
        read_live_memory("ftp://nowhere")
