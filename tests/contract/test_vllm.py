"""The vLLM adapter against the contract and vLLM's ways to fail, with a stand-in that prints what vLLM prints."""

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from powerband import health
from powerband.case import CaseRequest, prepare
from powerband.engines import vllm
from powerband.engines.base import Engine
from powerband.engines.vllm import Vllm
from powerband.engines.vllm_knobs import Machine
from powerband.evaluate import Trials
from powerband.loop import Loop
from powerband.records.config import Effective, EngineConfig, Value
from powerband.records.errors import EngineError, RequestError
from powerband.records.run import Trial
from powerband.records.units import GIB
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.sqlite import Journal
from powerband.testing import EngineContract
from tests.support import scripted_vllm
from tests.support.faking import fake_process


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in is the vLLM of this machine, which has no cards."""
    folder = tmp_path_factory.mktemp("vllm")
    monkeypatch.setenv("POWERBAND_VLLM", str(scripted_vllm.install(folder)))
    monkeypatch.setattr(vllm, "this_machine", lambda: Machine(cards=0, cores=2))
    return scripted_vllm.small_model(folder)


class TestVllm(EngineContract):
    engine_name = "vllm"
    config_knobs: ClassVar[dict[str, Value]] = {"max_num_seqs": 20, "max_num_batched_tokens": 2048}
    bad_start: ClassVar[dict[str, Value]] = {"max_num_seqs": 1}
    start_timeout_s = 30.0

    @pytest.fixture
    def model(self, installed: Path) -> str:
        return str(installed)

    @pytest.fixture
    def config(self, engine: Engine, model: str) -> EngineConfig:
        return EngineConfig(engine="vllm", model=model, knobs=self.config_knobs)


def config(model: Path, seqs: int, **knobs: Value) -> EngineConfig:
    return EngineConfig(engine="vllm", model=str(model), knobs={"max_num_seqs": seqs, **knobs})


def test_settings_and_memory_are_read_back(installed: Path, tmp_path: Path) -> None:
    running = Vllm().start(config(installed, 20, max_num_batched_tokens=4096, max_model_len=2048), tmp_path)
    try:
        effective, memory = running.effective(), running.memory()
        assert running.version.startswith("vLLM ")
    finally:
        running.stop()
    assert isinstance(effective, Effective)
    assert effective.values["max_num_seqs"] == 20
    assert effective.values["max_num_batched_tokens"] == 4096
    assert effective.differs == {"max_model_len": "asked 2048, runs 4096"}
    assert not isinstance(memory, Missing)
    assert memory.report.weights_bytes == pytest.approx(12.55 * GIB)
    assert memory.report.kv_cache_bytes == pytest.approx(115.4 * GIB)
    assert memory.report.kv_tokens == 236_336


@pytest.mark.parametrize(
    ("seqs", "named"),
    [
        (1, r"out of memory: CUDA out of memory\. Tried to allocate 2\.00 GiB"),
        (2, r"out of memory: no room for the KV cache: No available memory for the cache blocks"),
        (3, r"unsupported quantisation: The quantization method fp8 is not supported for the current GPU"),
        (4, r"memory is held by others: Free memory on device cuda:0"),
    ],
)
def test_a_start_that_fails_names_its_cause(installed: Path, tmp_path: Path, seqs: int, named: str) -> None:
    with pytest.raises(EngineError, match=rf"died at start with exit code 1: {named}") as raised:
        Vllm().start(config(installed, seqs), tmp_path)
    assert "EngineCore failed to start." in raised.value.log_tail


def test_a_server_that_never_answers_is_given_up_and_its_tree_ended(installed: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="did not answer within 1 s"):
        Vllm().start(config(installed, scripted_vllm.LATE), tmp_path, timeout_s=1.0)
    left = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    assert left == []


def test_a_flag_that_this_release_lacks_is_named(installed: Path, tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match="a flag is not known to this vLLM: unrecognized arguments: --stream-interval"
    ):
        Vllm().start(config(installed, 20, stream_interval=4), tmp_path)


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    journal = Journal(tmp_path / "home")
    session = journal.begin("tune", "{}")
    made = Trials(journal, session.session_id, Vllm(), slo=None, budget_s=600.0, command="test")
    yield made
    made.close()


def run(trials: Trials, key: str, asked: EngineConfig) -> Trial:
    requests = tuple(RequestSpec(offset_ns=index * 10_000_000, input_tokens=8, output_tokens=20) for index in range(30))
    workload = Workload(requests=requests, source="test")
    return trials.run(key, asked, workload, "tune", cut_s=4.0)[0]


def test_each_fault_is_a_trial_with_its_cause_and_the_search_goes_on(
    trials: Trials, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_SILENT_S", 1.0)
    monkeypatch.setattr(health, "_ANSWER_S", 1.0)
    monkeypatch.setattr("powerband.warm_up._ANSWER_S", 2.0)
    monkeypatch.setattr("powerband.evaluate._RETRIES", 0)  # others on this machine are no part of the test
    assert run(trials, "good", config(installed, 20)).status in ("done", "contended", "client_limited")
    causes = {seqs: run(trials, f"seqs-{seqs}", config(installed, seqs)) for seqs in (1, 2, 3, 5, 6, 7)}
    assert {trial.status for trial in causes.values()} == {"failed"}
    told = {seqs: trial.cause or "" for seqs, trial in causes.items()}
    assert "died at start" in told[1]
    assert "out of memory: CUDA out of memory" in told[1]
    assert "no room for the KV cache" in told[2]
    assert "unsupported quantisation" in told[3]
    assert "in its warm-up" in told[5]
    assert "out of memory: CUDA out of memory" in told[5]
    assert "the engine's core died: Engine core proc EngineCore died unexpectedly" in told[6]
    assert "the engine hung: no token for" in told[7]
    assert run(trials, "good-again", config(installed, 21)).status in ("done", "contended", "client_limited")
    assert len(trials.trials) == 8


def test_a_baseline_that_cannot_fit_was_foretold_by_the_ledger(tmp_path: Path) -> None:
    # 40 layers of 5120: 26 GB of weights in 16 bits, on a card of 24 GiB.
    (tmp_path / "13b").mkdir()
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "13b" / "config.json").write_text(json.dumps(shape))
    request = CaseRequest(
        model=str(tmp_path / "13b"), engine="vllm", device="rtx4090", settings=("max_num_seqs=1",),
        traffic="in=16,out=8,arrivals=poisson(5/s)", requests=10,
    )  # fmt: skip
    case = prepare(request)
    assert case.ledger is not None
    assert not case.ledger.fits
    journal = Journal(tmp_path / "home")
    session = journal.begin("loop", "{}")
    made = Trials(journal, session.session_id, Vllm(), slo=None, budget_s=600.0, command="test")
    with pytest.raises(EngineError, match=r"of which the ledger said: .* more than .* failed: .*out of memory"):
        Loop(case, made).run()


def test_a_leftover_on_the_port_is_named(installed: Path, tmp_path: Path) -> None:
    with fake_process() as (url, leftover):
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(RequestError, match=rf"port {port} is taken: .*pid {leftover.pid} ") as raised:
            Vllm().start(config(installed, 20, port=port), tmp_path)
        assert "fake_server" in raised.value.message


def test_an_orphan_of_the_core_is_ended_with_its_server(installed: Path, tmp_path: Path) -> None:
    running = Vllm().start(config(installed, 20), tmp_path)
    assert running.pid is not None
    children = psutil.Process(running.pid).children(recursive=True)
    assert children
    psutil.Process(running.pid).kill()  # the API server alone: its core becomes an orphan
    until_s = time.monotonic() + 15
    while any(child.is_running() for child in children) and time.monotonic() < until_s:
        time.sleep(0.05)
    running.stop()
    assert not any(child.is_running() for child in children)


def test_the_start_command_can_be_typed(installed: Path) -> None:
    asked = config(installed, 20, enforce_eager=True, enable_prefix_caching=False, VLLM_CACHE_ROOT="/a b")
    words = shlex.split(Vllm().start_command(asked))
    assert words[:4] == ["VLLM_CACHE_ROOT=/a b", "vllm", "serve", str(installed)]
    assert set(words[4:]) == {"--enforce-eager", "--no-enable-prefix-caching", "--max-num-seqs", "20"}
