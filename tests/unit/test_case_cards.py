"""How many cards a session takes: the naive settings, the ledger and the step time mean the same by --count."""

import json
from pathlib import Path

import pytest

from powerband.account.ledger import compute_ledger
from powerband.account.rules import RULES
from powerband.case import Case, CaseRequest, prepare, prepare_all
from powerband.records.errors import RequestError
from powerband.simulate.step_time import predict_from_datasheet

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return str(tmp_path)


def request(model: str, engine: str = "vllm", **more: object) -> CaseRequest:
    fields = {"device": "h100", "traffic": "in=100,out=10,arrivals=poisson(2/s)", "requests": 8}
    return CaseRequest(model=model, engine=engine, **{**fields, **more})  # type: ignore[arg-type]


def weights(case: Case, **knobs: int) -> int:
    ledger = case.size_of(case.naive.replace(**knobs))
    assert ledger is not None
    return next(line.bytes for line in ledger.lines if line.name == "weights")


@pytest.mark.parametrize(("engine", "knob"), [("vllm", "tensor_parallel_size"), ("sglang", "tp_size")])
def test_cards_are_tensor_parallel_in_the_settings_the_memory_and_the_time(model: str, engine: str, knob: str) -> None:
    two, one = prepare(request(model, engine, count=2)), prepare(request(model, engine))
    assert two.naive.knobs[knob] == 2
    assert knob not in one.naive.knobs
    assert weights(two) == weights(one, **{knob: 2}) < 0.6 * weights(one)
    assert two.model is not None
    prior = predict_from_datasheet(two.model, two.device, two.naive)
    assert prior.terms.weight_s < 0.6 * prior.at(one.naive).terms.weight_s
    # A config of the search that takes one card again is one card in memory too.
    assert weights(two, **{knob: 1}) == weights(one)


def test_a_config_of_more_cards_than_were_asked_for_is_refused(model: str) -> None:
    case = prepare(request(model, "sglang", count=2))
    assert case.refuses(case.naive.replace(tp_size=4)) == "it takes 4 cards, --count says 2"
    assert case.refuses(case.naive.replace(tp_size=1, dp_size=2)) is None
    assert (case.cards_of(case.naive), case.cards_of(case.naive.replace(tp_size=1))) == (2, 1)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"engine": "openvino", "count": 2}, "openvino splits no layer over 2 cards"),
        ({"count": 0}, "count 0 is not possible"),
        ({"count": 3, "settings": ("tensor_parallel_size=2",)}, "tensor_parallel_size=2 does not go into 3 cards"),
        ({"goal": "cards"}, "the fewest cards for what"),
        ({"rivals": ("vllm",)}, "names an engine twice"),
        ({"rivals": ("openai",)}, "openai is not started from here"),
        ({"rivals": ("vlm",)}, "unknown engine 'vlm'"),
        ({"rivals": ("sglang",), "settings": ("tensor=2",)}, "unknown knob of this session's engines 'tensor'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(model: str, more: dict[str, object], error: str) -> None:
    with pytest.raises(RequestError, match=error) as raised:
        prepare_all(request(model, **more))  # type: ignore[arg-type]
    assert raised.value.hint


def test_layers_on_several_cards_share_memory_and_not_the_time(model: str) -> None:
    case = prepare(request(model, "transformers", count=2))
    assert weights(case) < 0.6 * weights(prepare(request(model, "transformers")))
    assert case.cards_of(case.naive) == 2


def test_an_engine_without_memory_rules_is_tuned_without_a_ledger(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an engine that another package brings has none."""
    monkeypatch.delitem(RULES, "vllm")
    case = prepare(request(model))
    assert case.ledger is None
    assert case.refuses(case.naive) is None


def test_engines_of_one_session_take_the_settings_they_know(model: str) -> None:
    asked = request(model, rivals=("sglang", f"tgi={model}/other"), settings=("max_num_seqs=8", "sglang.tp_size=2"))
    Path(model, "other").mkdir()
    Path(model, "other", "config.json").write_text(json.dumps({**MODEL, "num_hidden_layers": 16}))
    vllm, sglang, tgi = prepare_all(asked)
    assert (vllm.fixed, sglang.fixed, tgi.fixed) == ({"max_num_seqs": 8}, {"tp_size": 2}, {})
    assert vllm.workload == sglang.workload == tgi.workload
    assert vllm.model is not None
    assert tgi.model is not None
    assert (vllm.model.n_layers, tgi.model.n_layers) == (32, 16)
    assert compute_ledger(tgi.model, tgi.device, tgi.naive).fits  # type: ignore[arg-type]


def test_traffic_beyond_the_models_context_is_told_and_refused_where_nothing_is_left(
    model: str, tmp_path: Path
) -> None:
    """The model holds 8,192 tokens: of these four requests one is longer."""
    trace = tmp_path / "trace.jsonl"
    lengths = ((100, 10), (8000, 192), (8000, 193), (50, 1))
    rows = [{"offset_ns": n * 10**9, "input_tokens": a, "output_tokens": b} for n, (a, b) in enumerate(lengths)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (note,) = prepare(request(model, traffic=str(trace))).notes
    assert note.startswith(
        "25.0 % of the traffic's requests are longer than the model's context of 8,192 tokens: vllm "
    )
    assert prepare(request(model)).notes == ()
    with pytest.raises(RequestError, match="every request is longer than the model's context of 8,192 tokens") as error:
        prepare(request(model, traffic="in=8190,out=3,concurrency=2"))
    assert "--scale-lengths" in error.value.hint
