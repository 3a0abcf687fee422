"""SGLang, TGI, TensorRT-LLM and MLX: the adapters' contract on stand-ins, and their flags against recorded releases.

None of these engines was run here; docs/reference/engines.md says what each statement rests on.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from powerband.account.ledger import compute_ledger
from powerband.engines.base import get_engine
from powerband.engines.commanded import Commanded
from powerband.engines.running import Running
from powerband.engines.sglang import SglangRunning
from powerband.engines.tensorrt_llm import CONFIG_FILE
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.http import read_json
from powerband.probes.startup_log import read_startup_log
from powerband.records.config import Effective, EngineConfig, Knob, Value
from powerband.records.errors import EngineError, RequestError
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.scheduler import limits_of
from powerband.testing import EngineContract
from tests.support.scripted_engines import FAILING, FLAGS, NEWEST, OOM, SCRIPTS, VARIABLES, flags_of, install

ENGINES = tuple(NEWEST)
WORKLOAD = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=40, output_tokens=8),), source="contract")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def adapter(name: str) -> Commanded:
    engine = get_engine(name)
    assert isinstance(engine, Commanded)
    return engine


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


class _Scripted(EngineContract):
    """The contract against the stand-in of ``engine_name``."""

    start_timeout_s = 30.0

    @pytest.fixture(autouse=True)
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLES[self.engine_name], str(install(self.engine_name, tmp_path)))

    @pytest.fixture
    def model(self, checkpoint: str) -> str:
        return checkpoint


class TestSglang(_Scripted):
    engine_name = "sglang"
    config_knobs: ClassVar[dict[str, Value]] = {"max_running_requests": 64, "schedule_policy": "lpm"}
    bad_start: ClassVar[dict[str, Value]] = dict([FAILING["sglang"]])


class TestTgi(_Scripted):
    engine_name = "tgi"
    config_knobs: ClassVar[dict[str, Value]] = {"max_concurrent_requests": 256, "max_batch_prefill_tokens": 2048}
    bad_start: ClassVar[dict[str, Value]] = dict([FAILING["tgi"]])


class TestTensorRtLlm(_Scripted):
    engine_name = "tensorrt-llm"
    config_knobs: ClassVar[dict[str, Value]] = {"max_batch_size": 64, "max_num_tokens": 2048}
    bad_start: ClassVar[dict[str, Value]] = dict([FAILING["tensorrt-llm"]])


class TestMlx(_Scripted):
    engine_name = "mlx"
    config_knobs: ClassVar[dict[str, Value]] = {"decode_concurrency": 16}
    bad_start: ClassVar[dict[str, Value]] = dict([FAILING["mlx"]])


@pytest.fixture(params=ENGINES)
def running(
    request: pytest.FixtureRequest, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Running, Path]]:
    """One server of each engine's stand-in with its naive config, and the folder with its log."""
    name = request.param
    monkeypatch.setenv(VARIABLES[name], str(install(name, tmp_path)))
    server = adapter(name).start(adapter(name).naive(checkpoint, WORKLOAD), tmp_path, 30.0)
    try:
        yield name, server, tmp_path
    finally:
        server.stop()


def test_metrics_memory_and_version_of_a_running_server(running: tuple[str, Running, Path]) -> None:
    name, server, folder = running
    body = {"model": server.model_id, "prompt": "one two three", "max_tokens": 4, "temperature": 0}
    read_json(server.url + "/v1/completions", timeout_s=30, body=body)
    sample = server.sample(1)
    if name == "mlx":
        assert isinstance(sample.running, Missing)
        assert "404" in sample.running.missing
        return
    assert (sample.running, sample.waiting) == (0, 0)
    assert (sample.prompt_tokens_total, sample.output_tokens_total) == (3, 4)
    assert "0.0.fake" in server.version
    log = read_startup_log(folder / "engine.log")
    assert log.engine == name
    assert log.report.kv_tokens == {"sglang": 221184, "tgi": 52125, "tensorrt-llm": 221184}[name]


def test_a_fault_is_named_where_one_came_after_the_start(running: tuple[str, Running, Path]) -> None:
    _, server, folder = running
    assert server.fault() is None
    with (folder / "engine.log").open("a") as log:
        log.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 616.00 MiB. GPU 0 has ...\n")
    assert (server.fault() or "").startswith("out of memory: CUDA out of memory.")


@pytest.mark.parametrize("name", ENGINES)
def test_a_start_that_runs_out_of_memory_says_so(
    name: str, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES[name], str(install(name, tmp_path)))
    knob, value = FAILING[name]
    with pytest.raises(EngineError, match=r"died at start with exit code 1: out of memory: ") as raised:
        adapter(name).start(adapter(name).naive(checkpoint, WORKLOAD).replace(**{knob: value}), tmp_path, 30.0)
    assert raised.value.log_tail


def test_two_starts_in_one_folder_each_read_their_own_log(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES["tensorrt-llm"], str(install("tensorrt-llm", tmp_path)))
    engine = adapter("tensorrt-llm")
    for size in (64, 32):
        server = engine.start(engine.naive(checkpoint, WORKLOAD).replace(max_batch_size=size), tmp_path, 30.0)
        try:
            effective = server.effective()
        finally:
            server.stop()
        assert isinstance(effective, Effective)
        assert (effective.values["max_batch_size"], effective.differs) == (size, {})


@pytest.mark.parametrize("running", ["sglang"], indirect=True)
def test_sglang_is_told_to_forget(running: tuple[str, Running, Path]) -> None:
    _, server, _ = running
    assert isinstance(server, SglangRunning)
    assert server.forget()
    server.stop()
    assert not server.forget()


def knob_value(knob: Knob) -> Value:
    """A value that is not the naive one, so that its flag is written."""
    if knob.kind == "bool":
        return True
    others = [value for value in (*knob.grid, *knob.choices) if value != knob.naive]
    if others:
        return others[-1]
    if knob.kind == "text":
        return "1"
    number = (knob.naive if isinstance(knob.naive, int | float) else 0) + 1
    return min(number, knob.high) if knob.high is not None else number


def flags_written(engine: Commanded) -> dict[str, str]:
    """Knob -> the flag that it is written as, for knobs that are flags."""
    about = engine.description
    apart = {*about.environment, *about.written}
    found = {}
    for knob in engine.knobs():
        if knob.name not in apart:
            words = engine._flags(engine._said({knob.name: knob_value(knob)}))
            assert words, f"{knob.name} writes no flag"
            found[knob.name] = words[0]
    return found


@pytest.mark.parametrize("name", ENGINES)
def test_every_flag_is_one_of_the_newest_recorded_release(name: str) -> None:
    engine, known = adapter(name), flags_of(NEWEST[name])
    knobs = {knob.name: knob for knob in engine.knobs()}
    for knob, flag in flags_written(engine).items():
        assert flag in known, f"{knob}: {flag} is not a flag of {NEWEST[name]}"
        assert (known[flag]["takes"] == "nothing") == (knobs[knob].kind == "bool"), flag
        choices = known[flag].get("choices")
        if choices and knobs[knob].kind == "choice":
            left_out = [value for value in knobs[knob].choices if value not in (*choices, "auto", "none")]
            assert left_out == [], f"{knob}: {left_out} are no values of {flag}"
    always = [word for word in (*engine.description.always, engine.description.host_flag) if word.startswith("--")]
    assert [word for word in always if word not in known] == []
    if engine.description.model_flag:
        assert engine.description.model_flag in known


@pytest.mark.parametrize("path", sorted(FLAGS.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_flags_say_where_they_come_from(path: Path) -> None:
    document: dict[str, Any] = json.loads(path.read_text())
    assert path.stem == f"{document['engine']}-{document['version']}"
    assert document["source"]
    assert all(
        flag.startswith("--") and facts["takes"] in ("value", "nothing") for flag, facts in document["flags"].items()
    )


def test_a_flag_that_the_release_lacks_ends_the_start(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES["tgi"], str(install("tgi", tmp_path)))
    config = adapter("tgi").naive(checkpoint, WORKLOAD).replace(no_such_knob=3)
    with pytest.raises(EngineError) as raised:
        adapter("tgi").start(config, tmp_path, 30.0)
    assert "--no-such-knob" in raised.value.message


COMMANDS: dict[str, tuple[dict[str, Value], str]] = {
    "sglang": (
        {"tp_size": 2, "chunked_prefill_size": 4096, "disable_radix_cache": True, "attention_backend": "auto"},
        "python -m sglang.launch_server --model-path M --enable-metrics --tp-size 2 --chunked-prefill-size 4096"
        " --disable-radix-cache",
    ),
    "tgi": (
        {"num_shard": 2, "quantize": "none", "cuda_graphs": "0", "ATTENTION": "flashinfer", "port": 3000},
        "ATTENTION=flashinfer text-generation-launcher --model-id M --num-shard 2 --cuda-graphs 0 --port 3000",
    ),
    "tensorrt-llm": (
        {"tp_size": 2, "max_batch_size": 64, "kv_cache_dtype": "fp8", "attn_backend": "auto"},
        "trtllm-serve M --tp_size 2 --max_batch_size 64  # with a config file that says kv_cache_dtype: fp8",
    ),
    "mlx": ({"decode_concurrency": 8, "port": 0}, "mlx_lm.server --model M --decode-concurrency 8"),
}


@pytest.mark.parametrize("name", ENGINES)
def test_the_start_command_is_what_a_user_types(name: str) -> None:
    knobs, command = COMMANDS[name]
    assert adapter(name).start_command(EngineConfig(engine=name, model="M", knobs=knobs)) == command


def test_tensorrt_llm_writes_what_has_no_flag(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES["tensorrt-llm"], str(install("tensorrt-llm", tmp_path)))
    config = adapter("tensorrt-llm").naive(checkpoint, WORKLOAD).replace(
        kv_cache_dtype="fp8", enable_block_reuse=False, kv_cache_free_gpu_memory_fraction=0.8, cuda_graphs="off",
        capacity_scheduler_policy="MAX_UTILIZATION", speculative="ngram", disable_overlap_scheduler=True,
    )  # fmt: skip
    adapter("tensorrt-llm").start(config, tmp_path, 30.0).stop()
    assert json.loads((tmp_path / CONFIG_FILE).read_text()) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        # The file's group replaces the flag's, so the share of memory stands in both.
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False, "free_gpu_memory_fraction": 0.8},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        "disable_overlap_scheduler": True,
        "cuda_graph_config": None,
        "speculative_config": {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 4},
    }


@pytest.mark.parametrize(
    ("name", "knobs", "said"),
    [
        ("sglang", {"context_length": 32}, "context_length=32 is shorter"),
        ("sglang", {"max_total_tokens": 32}, "cannot hold the longest request of 48"),
        ("sglang", {"enable_dp_attention": True, "tp_size": 4, "dp_size": 3}, "must divide"),
        ("sglang", {"speculative_algorithm": "EAGLE"}, "speculative_draft_model_path"),
        ("sglang", {"chunked_prefill_size": -1, "enable_mixed_chunk": True}, "needs chunks"),
        ("tgi", {"max_input_tokens": 64, "max_total_tokens": 64}, "leaves no answer"),
        ("tgi", {"max_batch_total_tokens": 40}, "cannot hold 48 tokens"),
        ("tgi", {"max_input_tokens": 99, "max_batch_prefill_tokens": 50}, "cannot hold a prompt"),
        ("tgi", {"quantize": "fp8", "dtype": "float16"}, "beside quantize"),
        ("tensorrt-llm", {"max_num_tokens": 32}, "chunk prefills"),
        ("tensorrt-llm", {"max_num_tokens": 64, "max_batch_size": 65}, "larger than max_num_tokens"),
        ("tensorrt-llm", {"speculative": "ngram"}, "overlap scheduler"),
        ("tensorrt-llm", {"tokens_per_block": 48}, "power of two"),
        ("mlx", {"draft_model": "small", "decode_concurrency": 4}, "not batched"),
    ],
)
def test_what_an_engine_cannot_run_is_refused_before_a_start(name: str, knobs: dict[str, Value], said: str) -> None:
    reason = adapter(name).refuses(EngineConfig(engine=name, model="m", knobs=knobs), WORKLOAD)
    assert reason is not None
    assert said in reason


@pytest.mark.parametrize("name", ENGINES)
def test_naive_is_known_to_the_ledger_and_the_simulator(name: str, checkpoint: str) -> None:
    engine = adapter(name)
    config = engine.naive(checkpoint, WORKLOAD)
    kv_tokens = None
    if engine.loads_model:
        ledger = compute_ledger(read_model(checkpoint), read_device("h100"), config, traffic=WORKLOAD)
        assert ledger.fits
        kv_tokens = ledger.capacity.kv_tokens
    limits = limits_of(config, kv_tokens)
    assert limits.slots >= 1
    assert limits.most_prompt_tokens >= 40


@pytest.mark.parametrize("name", ENGINES)
def test_an_absent_program_names_how_to_get_it(
    name: str, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLES[name], raising=False)
    monkeypatch.setattr("powerband.engines.commanded.find_package", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError) as raised:
        adapter(name).start(adapter(name).naive(checkpoint, WORKLOAD), tmp_path)
    assert VARIABLES[name] in raised.value.hint
    monkeypatch.setenv(VARIABLES[name], "/no/such/program")
    with pytest.raises(RequestError, match="no program that can be run"):
        adapter(name).start(adapter(name).naive(checkpoint, WORKLOAD), tmp_path)


def test_the_stand_ins_know_every_engine() -> None:
    assert set(SCRIPTS) == set(VARIABLES) == set(FAILING) == set(OOM) == set(ENGINES)
