"""Which rungs a ladder has, and which engine a setting goes to."""

import pytest

from powerband.engines.settings import split_settings
from powerband.ladder.rungs import Ask, engines_of, plan_rungs
from powerband.records.errors import RequestError
from powerband.records.workload import RequestSpec, Workload

WORKLOAD = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=40, output_tokens=8),), source="test")


def test_the_ladder_to_vllm_on_a_card() -> None:
    rungs = plan_rungs(
        Ask(model="/m", engine="vllm", workload=WORKLOAD, concurrency=64, on_card=True,
            set_knobs={"vllm": {"load_format": "dummy"}, "transformers": {"load_format": "dummy"}})
    )  # fmt: skip
    assert [rung.name for rung in rungs] == [
        "native Transformers",
        "pipelined tokenising",
        "continuous batching",
        "engine: vllm, eager",
        "compile and graphs",
        "quantised",
        "tuned limits",
    ]
    assert all(rung.config.knobs["load_format"] == "dummy" for rung in rungs)
    assert rungs[0].config.knobs["batching"] == "none"
    assert rungs[3].config.knobs["enforce_eager"] is True
    assert "enforce_eager" not in rungs[4].config.knobs
    assert rungs[5].config.knobs["quantization"] == "fp8"
    assert [rung.gated for rung in rungs] == [False] * 5 + [True, True]
    assert "no_batching" in rungs[2].removes
    assert "launch_bound" in rungs[4].removes
    assert set(rungs[6].tunes) == {"max_num_batched_tokens", "max_num_seqs"}


def test_a_limit_that_was_set_is_not_tuned() -> None:
    ask = Ask(model="/m", engine="vllm", workload=WORKLOAD, concurrency=8, on_card=True,
              set_knobs={"vllm": {"max_num_seqs": 64}})  # fmt: skip
    last = plan_rungs(ask)[-1]
    assert set(last.tunes) == {"max_num_batched_tokens"}
    assert last.config.knobs["max_num_seqs"] == 64


def test_the_ladder_to_openvino_passes_llama_cpp_for_a_gguf_file() -> None:
    ask = Ask(model="/m.gguf", engine="openvino", workload=WORKLOAD, concurrency=8, on_card=False, quantized="/q.gguf")
    rungs = plan_rungs(ask)
    assert [rung.config.engine for rung in rungs] == [*["transformers"] * 3, "llamacpp", *["openvino"] * 3]
    assert rungs[3].config.knobs["n_parallel"] == 8
    assert rungs[4].config.knobs["max_num_seqs"] == 8
    assert [rung.config.model for rung in rungs] == ["/m.gguf"] * 5 + ["/q.gguf"] * 2


def test_without_a_way_to_quantise_the_rung_says_so() -> None:
    ask = Ask(model="/m", engine="vllm", workload=WORKLOAD, concurrency=8, on_card=False)
    rungs = plan_rungs(ask)
    assert "--quantized" in rungs[5].left_out
    assert not rungs[6].gated


def test_settings_go_to_whoever_knows_them() -> None:
    engines = ("transformers", "vllm")
    found = split_settings(("load_format=dummy", "max_num_seqs=4", "transformers.num_threads=1"), engines)
    assert found == {
        "transformers": ["load_format=dummy", "num_threads=1"],
        "vllm": ["load_format=dummy", "max_num_seqs=4"],
    }
    with pytest.raises(RequestError, match="max_num_seq") as raised:
        split_settings(("max_num_seq=4",), engines)
    assert "max_num_seqs" in raised.value.hint
    with pytest.raises(RequestError, match="sglang"):
        split_settings(("sglang.tp_size=2",), engines)


def test_a_ladder_ends_where_one_can_go() -> None:
    assert engines_of("vllm", "/m") == ("transformers", "vllm")
    assert engines_of("openvino", "m.gguf") == ("transformers", "llamacpp", "openvino")
    for engine in ("transformers", "fake", "nothing"):
        with pytest.raises(RequestError):
            engines_of(engine, "/m")
