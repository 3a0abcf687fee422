"""Every built-in adapter against the contract that others' adapters are held to as well."""

import subprocess
import sys
from collections.abc import Iterator
from typing import ClassVar

import pytest

from powerband.engines.base import Engine
from powerband.records.config import EngineConfig, Value
from powerband.testing import EngineContract


class TestFake(EngineContract):
    engine_name = "fake"
    config_knobs: ClassVar[dict[str, Value]] = {"slots": 3, "step_ms": 1.5}
    bad_start: ClassVar[dict[str, Value]] = {"fail_start": True}


class TestOpenAI(EngineContract):
    engine_name = "openai"
    port_knob = None

    @pytest.fixture
    def config(self, engine: Engine, model: str) -> Iterator[EngineConfig]:
        command = [sys.executable, "-m", "powerband.engines.fake_server", "--port", "0", "--dialect", "vllm"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        yield EngineConfig(engine="openai", model=model, knobs={"url": server.stdout.readline().split()[-1]})
        server.terminate()
        server.communicate(timeout=10)

    def test_naive_holds_the_longest_request(self, engine: Engine, model: str) -> None:
        pytest.skip("an attached server's limits are its own")
