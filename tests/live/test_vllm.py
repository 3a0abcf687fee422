"""vLLM for real, with a tiny model of random weights; skipped with the reason where it is not installed.

    POWERBAND_VLLM=/path/to/env/bin/python pytest tests/live/test_vllm.py

On a CPU build a start takes half a minute, so tests share one server where they can.
"""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from powerband.engines.base import Engine
from powerband.engines.server import ServerRunning
from powerband.engines.vllm import Vllm
from powerband.evaluate import Trials
from powerband.load.target import Progress
from powerband.measure import OnProgress
from powerband.probes.engine_metrics import expected_names
from powerband.probes.engine_profiler import record_engine
from powerband.probes.http import read_json, read_page
from powerband.probes.installed import find_vllm
from powerband.probes.prometheus import parse_metrics
from powerband.records.config import Effective, EngineConfig, Value
from powerband.records.errors import EngineError
from powerband.records.run import Trial
from powerband.records.value import Missing, known
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.sqlite import Journal
from powerband.testing import EngineContract
from tests.support.tiny_model import CONFIG, write_tiny_model

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
# What makes a start quick and small; the CPU build takes gigabytes for its cache otherwise.
QUICK: dict[str, Value] = {
    "load_format": "dummy", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 4,
    "max_num_batched_tokens": 1024, "VLLM_CPU_KVCACHE_SPACE": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    if find_vllm() is None:
        pytest.skip("no vLLM: set POWERBAND_VLLM to a vllm script, or to the python of an environment with vllm-cpu")
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    # Heads of 32 and a longer context: what vLLM's CPU attention takes, and several blocks of 128 tokens.
    wider = {"hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 2048, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(CONFIG | wider), encoding="utf-8")
    return str(folder)


def config(model: str, **knobs: Value) -> EngineConfig:
    return EngineConfig(engine="vllm", model=model, knobs={**QUICK, **knobs})


class TestVllm(EngineContract):
    engine_name = "vllm"
    config_knobs: ClassVar[dict[str, Value]] = {"max_num_seqs": 4, "max_num_batched_tokens": 1024}
    bad_start: ClassVar[dict[str, Value]] = {"max_model_len": 4096}  # more than the model has
    start_timeout_s = 300.0

    @pytest.fixture
    def model(self, tiny: str) -> str:
        return tiny

    @pytest.fixture
    def config(self, engine: Engine, model: str) -> EngineConfig:
        return config(model)


@pytest.fixture(scope="module")
def running(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerRunning]:
    folder = tmp_path_factory.mktemp("shared")
    (folder / "traces").mkdir()
    profiler = json.dumps({"profiler": "torch", "torch_profiler_dir": str(folder / "traces")})
    server = Vllm().start(config(tiny, num_gpu_blocks_override=9, profiler_config=profiler), folder)
    yield server
    server.stop()


def test_every_expected_metric_is_there(running: ServerRunning) -> None:
    scrape = parse_metrics(read_page(running.url + "/metrics").text)
    for field, names in expected_names("vllm").items():
        assert any(name in scrape.series for name in names), field


def test_what_it_runs_is_read_back(running: ServerRunning) -> None:
    effective = running.effective()
    assert isinstance(effective, Effective)
    assert effective.differs == {}
    for name, value in {"max_num_seqs": 4, "max_num_batched_tokens": 1024, "max_model_len": 1024}.items():
        assert effective.values[name] == value
    assert effective.values["enforce_eager"] is True
    assert effective.values["num_gpu_blocks"] == 9
    assert running.version.startswith("vLLM 0.")


def test_what_it_says_of_its_memory_is_read(running: ServerRunning) -> None:
    memory = running.memory()
    assert not isinstance(memory, Missing), memory
    assert memory.engine == "vllm"
    assert memory.report.kv_tokens


def test_counters_follow_what_was_asked_and_the_prefix_cache_is_forgotten(running: ServerRunning) -> None:
    def ask() -> None:
        body = {
            "prompt": [n % 256 for n in range(260)],
            "max_tokens": 12,
            "ignore_eos": True,
            "model": running.model_id,
        }
        usage = read_json(running.url + "/v1/completions", body=body, timeout_s=110)["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (260, 12)

    before = running.sample(0)
    ask()
    first = running.sample(1)
    assert known(first.prompt_tokens_total) == (known(before.prompt_tokens_total) or 0) + 260
    assert known(first.output_tokens_total) == (known(before.output_tokens_total) or 0) + 12
    ask()
    again = running.sample(2)
    assert (known(again.cached_prompt_tokens_total) or 0) > (known(first.cached_prompt_tokens_total) or 0)
    assert running.forget()
    ask()
    assert known(running.sample(3).cached_prompt_tokens_total) == known(again.cached_prompt_tokens_total)


def test_a_trace_of_its_steps(running: ServerRunning) -> None:
    folder = running.log.parent / "traces"
    body = {"prompt": "once", "max_tokens": 4, "model": running.model_id}
    ask = threading.Timer(0.5, read_json, [running.url + "/v1/completions"], {"body": body, "timeout_s": 110})
    ask.start()
    traces = record_engine(running.url, folder, 5.0)
    ask.join()
    assert all(path.stat().st_size for path in traces)


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"quantization": "fp8"}, "unsupported quantisation"),
        ({"VLLM_CPU_KVCACHE_SPACE": 100_000}, "out of memory|memory is held by others"),
        ({"max_model_len": 1024, "num_gpu_blocks_override": 1}, "no room for the KV cache"),
    ],
)
def test_starts_that_cannot_work_name_their_cause(
    tiny: str, tmp_path: Path, knobs: dict[str, Value], named: str
) -> None:
    with pytest.raises(EngineError, match=named):
        Vllm().start(config(tiny, **knobs), tmp_path)


def cores() -> set[psutil.Process]:
    """The engines' cores below this test: the shared server has one too."""
    below = psutil.Process().children(recursive=True)
    return {one for one in below if one.is_running() and "EngineCore" in " ".join(one.cmdline())}


class _Striker:
    """Sends a signal to the core of the engine that a trial started, once its requests have begun."""

    def __init__(self, number: int) -> None:
        self.number, self.struck, self.others = number, False, cores()

    def started(self, key: str, config: EngineConfig) -> OnProgress:
        return self.progress

    def finished(self, key: str, trial: Trial) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        if self.struck:
            return
        self.struck = True
        (core,) = cores() - self.others
        os.kill(core.pid, self.number)


def run(trials: Trials, key: str, asked: EngineConfig, cut_s: float) -> Trial:
    requests = tuple(
        RequestSpec(offset_ns=index * 50_000_000, input_tokens=16, output_tokens=200) for index in range(60)
    )
    workload = Workload(requests=requests, source="test")
    return trials.run(key, asked, workload, "tune", cut_s=cut_s)[0]


@pytest.mark.parametrize(
    ("number", "named"), [(signal.SIGKILL, "the engine's core died"), (signal.SIGSTOP, "the engine hung")]
)
def test_a_core_that_is_killed_or_hangs_ends_its_trial(tiny: str, tmp_path: Path, number: int, named: str) -> None:
    journal = Journal(tmp_path / "home")
    session = journal.begin("tune", "{}")
    striker = _Striker(number)
    made = Trials(journal, session.session_id, Vllm(), slo=None, budget_s=600.0, command="test", watcher=striker)
    trial = run(made, "struck", config(tiny), 20.0)
    made.close()
    assert trial.status == "failed"
    assert re.search(named, trial.cause or ""), trial.cause
    time.sleep(0.5)
    assert cores() <= striker.others
