"""Contract suites that adapters subclass: an engine that passes behaves as the loop expects.

class TestMine(EngineContract):
    engine_name = "mine"
    config_knobs = {"max_num_seqs": 2}
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from powerband.engines.base import Engine, RunningEngine, get_engine
from powerband.engines.process import free_port
from powerband.probes.http import read_json
from powerband.records.config import Effective, EngineConfig, Value, parse_settings
from powerband.records.errors import EngineError, RequestError
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload

_BODY = {"prompt": "one two three four", "max_tokens": 4, "temperature": 0}


def _small_workload() -> Workload:
    return Workload(requests=(RequestSpec(offset_ns=0, input_tokens=40, output_tokens=8),), source="contract")


class EngineContract:
    """What every engine adapter must do. Set ``engine_name``; ``model`` is a fixture or an attribute to override."""

    engine_name: ClassVar[str]
    config_knobs: ClassVar[dict[str, Value]] = {}
    port_knob: ClassVar[str | None] = "port"  # None for an adapter that opens no port
    bad_start: ClassVar[dict[str, Value]] = {}  # knobs with which the server dies at start; empty: not tried
    start_timeout_s: ClassVar[float] = 120.0

    @pytest.fixture
    def model(self) -> str:
        return "none"

    @pytest.fixture
    def engine(self) -> Engine:
        return get_engine(self.engine_name)

    @pytest.fixture
    def config(self, engine: Engine, model: str) -> EngineConfig:
        return engine.naive(model, _small_workload()).replace(**self.config_knobs)

    @pytest.fixture
    def running(self, engine: Engine, config: EngineConfig, tmp_path: Path) -> Iterator[RunningEngine]:
        server = engine.start(config, tmp_path, self.start_timeout_s)
        try:
            yield server
        finally:
            server.stop()

    def test_knobs_are_well_formed(self, engine: Engine) -> None:
        names = [knob.name for knob in engine.knobs()]
        assert len(names) == len(set(names))
        for knob in engine.knobs():
            for value in (*knob.grid, knob.naive):
                assert knob.parse(str(value)) == value, knob.name
            assert knob.help, knob.name

    def test_a_misspelt_knob_names_near_ones(self, engine: Engine) -> None:
        name = engine.knobs()[0].name
        with pytest.raises(RequestError) as raised:
            parse_settings([f"{name}x=1"], engine.knobs())
        assert name in raised.value.hint

    def test_naive_holds_the_longest_request(self, engine: Engine, model: str) -> None:
        workload = _small_workload()
        config = engine.complete(engine.naive(model, workload), workload, frozenset()).replace(**self.config_knobs)
        assert config.engine == engine.name
        assert engine.refuses(config, workload) is None

    def test_start_command_names_every_set_knob(self, engine: Engine, config: EngineConfig) -> None:
        command = engine.start_command(config)
        for value in self.config_knobs.values():
            assert str(value) in command

    def test_serves_and_tells_what_it_runs(self, running: RunningEngine, config: EngineConfig) -> None:
        assert running.alive()
        document = read_json(running.url + "/v1/completions", timeout_s=60, body={"model": running.model_id, **_BODY})
        assert document["usage"]["completion_tokens"] == 4
        effective = running.effective()
        assert isinstance(effective, Effective | Missing)
        if isinstance(effective, Effective):
            assert effective.source
            assert effective.differs == {}
        sample = running.sample(17)
        assert sample.t_ns == 17
        for field in sample.__struct_fields__:
            value = getattr(sample, field)
            assert not isinstance(value, Missing) or value.missing, field

    def test_stop_ends_everything_and_twice_is_fine(self, engine: Engine, running: RunningEngine) -> None:
        if not engine.restartable:
            running.stop()
            assert running.alive(), "an attached server must not be stopped"
            return
        assert running.pid is not None
        tree = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
        running.stop()
        running.stop()
        assert not [process for process in tree if process.is_running()]
        assert not running.alive()
        after = running.sample(1)
        assert isinstance(after.running, Missing)

    def test_death_is_noticed(self, engine: Engine, running: RunningEngine) -> None:
        if not engine.restartable or running.pid is None:
            pytest.skip("attached: not ours to kill")
        os.kill(running.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + 10
        while running.alive() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not running.alive()

    def test_a_taken_port_is_refused(self, engine: Engine, config: EngineConfig, tmp_path: Path) -> None:
        if self.port_knob is None:
            pytest.skip("opens no port")
        port = free_port()
        first = engine.start(config.replace(**{self.port_knob: port}), tmp_path / "first", self.start_timeout_s)
        try:
            with pytest.raises(RequestError, match=str(port)) as raised:
                engine.start(config.replace(**{self.port_knob: port}), tmp_path / "second", self.start_timeout_s)
            assert raised.value.hint
            assert first.alive()
        finally:
            first.stop()

    def test_death_at_start_shows_the_log(self, engine: Engine, config: EngineConfig, tmp_path: Path) -> None:
        if not self.bad_start:
            pytest.skip("no knobs known with which it dies at start")
        with pytest.raises(EngineError) as raised:
            engine.start(config.replace(**self.bad_start), tmp_path, self.start_timeout_s)
        assert raised.value.log_tail
