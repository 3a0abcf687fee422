"""Every built-in adapter against the contract that others' adapters are held to as well."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

from powerband.engines.base import Engine
from powerband.records.config import EngineConfig, Value
from powerband.testing import EngineContract
from tests.support.faking import fake


class TestFake(EngineContract):
    engine_name = "fake"
    config_knobs: ClassVar[dict[str, Value]] = {"slots": 3, "step_ms": 1.5}
    bad_start: ClassVar[dict[str, Value]] = {"fail_start": True}


class TestOpenAI(EngineContract):
    engine_name = "openai"
    port_knob = None

    @pytest.fixture
    def config(self, engine: Engine, model: str) -> Iterator[EngineConfig]:
        with fake("--dialect", "vllm") as url:
            yield EngineConfig(engine="openai", model=model, knobs={"url": url})

    def test_naive_holds_the_longest_request(self, engine: Engine, model: str) -> None:
        pytest.skip("an attached server's limits are its own")
