"""The planner: splits, their communication, the choice and its reasons, on cases worked out by hand or published."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from powerband.account.ledger import compute_ledger
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.parallel import ParallelPlan, Split, SplitFigures
from powerband.records.slo import Slo
from powerband.records.value import Interval
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.communication import communication_share, draw_factors, judge_share, with_share
from powerband.simulate.parallel import Memory, Question, confirm, plan_parallel, shares_of
from powerband.simulate.step_time import FACTORS, StepTime, predict_from_datasheet

LLAMA_13B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824,
    "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def model_of(folder: Path, **changes: int) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(LLAMA_13B | changes))
    return read_model(str(folder))


def ledger_memory(model: ModelSpec, device: DeviceSpec) -> Callable[[EngineConfig, int], Memory]:
    def ask(config: EngineConfig, ranks: int) -> Memory:
        ledger = compute_ledger(model, device, config, count=ranks, remedies=False)
        return Memory(fits=ledger.fits, kv_tokens=ledger.capacity.kv_tokens, shortage=ledger.shortage)

    return ask


def closed(concurrency: int, requests: int, prompt: int = 512, answer: int = 128) -> Workload:
    spec = RequestSpec(offset_ns=0, input_tokens=prompt, output_tokens=answer)
    return Workload(requests=(spec,) * requests, source="test", concurrency=concurrency)


def question(model: ModelSpec, device: DeviceSpec, cards: int, workload: Workload, **more: object) -> Question:
    config = EngineConfig(engine="vllm", model=model.name, knobs={"max_num_seqs": 256, "max_model_len": 2048})
    asked = Question(
        model=model, device=device, config=config, cards=cards, workload=workload,
        memory_of=ledger_memory(model, device),
    )  # fmt: skip
    return replace(asked, **more)  # type: ignore[arg-type]


def plan(asked: Question) -> ParallelPlan:
    return plan_parallel(asked, predict_from_datasheet(asked.model, asked.device, asked.config))


def split(found: ParallelPlan, tensor: int) -> Split:
    return next(one for one in found.splits if one.tensor == tensor)


def figures(found: ParallelPlan, tensor: int) -> SplitFigures:
    seen = split(found, tensor).figures
    assert seen is not None
    return seen


def test_share_by_hand(step_of: Callable[..., StepTime]) -> None:
    step = step_of(overhead_s=2e-3, weight_s=5e-3, collective_s=3e-3)
    parts = step.parts(sequences=1, context_tokens=0, prefill_tokens=0, pairs=0, sampled=1)
    assert communication_share(step, parts) == pytest.approx(0.3)


def test_many_requests_want_replicas_and_few_want_tensor_parallelism(tmp_path: Path) -> None:
    model, device = model_of(tmp_path), read_device("h200")
    many = plan(question(model, device, 2, closed(256, 512)))
    assert many.chosen == "TP 1 x DP 2"
    assert [one.name for one in many.splits] == ["TP 1 x DP 2", "TP 2 x DP 1"]
    few = plan(question(model, device, 2, closed(2, 16)))
    assert few.chosen == "TP 2 x DP 1"  # two requests cannot fill two copies: halved weights answer sooner
    share = figures(few, 2).communication
    # 80 all-reduces x (9.5 us + 2 x 5120 x 2 bytes at 337.5 GB/s) = 0.765 ms, in a step of about 4.6 ms.
    assert share.decode == pytest.approx(0.765 / 4.6, abs=0.04)
    assert figures(few, 1).communication.run == 0.0


def test_a_slow_link_turns_the_choice_to_replicas(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    slow = msgspec.structs.replace(read_device("h200"), link_bytes_per_s=0.0, pcie_bytes_per_s=16e9)
    found = plan(question(model, slow, 4, closed(16, 48)))
    assert figures(found, 4).communication.run > 0.3
    assert found.chosen in ("TP 1 x DP 4", "TP 2 x DP 2")
    assert "above 30 %" in found.reason
    assert "PCIe" in found.link


def test_traffic_that_fills_four_cards_wants_replicas(tmp_path: Path) -> None:
    found = plan(question(model_of(tmp_path), read_device("h200"), 4, closed(256, 768)))
    assert found.chosen in ("TP 1 x DP 4", "TP 2 x DP 2")
    assert figures(found, 1).output_tokens_per_s > 1.1 * figures(found, 4).output_tokens_per_s
    assert split(found, 4).wins == 0.0


def test_a_published_case_where_tp_2_was_slower(tmp_path: Path) -> None:
    # pytorch-labs/gpt-fast#111: Llama-2-7B on two V100s over NVLink, 29 tokens/s on one card and 17 with TP 2; by
    # Nsight Systems each of the 64 all-reduces of a step takes 500 us: 32 of 58.8 ms, a share of 0.54.
    shape = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    model = model_of(tmp_path, **shape, num_key_value_heads=32)
    asked = question(model, read_device("v100-32gb"), 2, closed(1, 4))
    step = predict_from_datasheet(asked.model, asked.device, asked.config)
    predicted = plan_parallel(asked, step)
    assert predicted.chosen == "TP 2 x DP 1"  # as the datasheet would have it
    share = 64 * 500e-6 * 17
    measured = plan_parallel(asked, with_share(step, shares_of(predicted)[2][0], share))
    found = confirm(predicted, measured, {2: (share, Interval(low=0.5, high=0.6))}, "nsys")
    assert found.verdicts[0].verdict == "refuted"
    assert found.chosen == "TP 1 x DP 2"
    assert "above 30 %" in found.reason


def test_what_does_not_fit_on_one_card_is_split(tmp_path: Path) -> None:
    model, device = model_of(tmp_path), read_device("rtx4090")  # 24 GB for 26 GB of weights
    found = plan(question(model, device, 2, closed(8, 24)))
    assert found.chosen == "TP 2 x DP 1"
    assert split(found, 1).figures is None
    assert "TP 1 x DP 2 does not fit" in found.reason
    assert "nothing to compare" in found.proof
    tiny = msgspec.structs.replace(device, memory_bytes=8 << 30)
    nothing = plan(question(model, tiny, 2, closed(8, 24)))
    assert nothing.chosen is None
    assert nothing.reason.startswith("no split fits")


def test_a_promise_comes_before_throughput(tmp_path: Path) -> None:
    model, device = model_of(tmp_path), read_device("h200")
    loose = plan(question(model, device, 2, closed(64, 192), slo=Slo(tpot_s=0.2)))
    assert all(one.holds for one in loose.splits)
    one_card = figures(loose, 1).tpot_p99_s
    two_cards = figures(loose, 2).tpot_p99_s
    assert one_card is not None
    assert two_cards is not None
    between = Slo(tpot_s=(one_card + two_cards) / 2, attainment=0.99)
    found = plan(question(model, device, 2, closed(64, 192), slo=between))
    kept = [one.name for one in found.splits if one.holds]
    assert found.chosen in kept
    assert len(kept) == 1


def test_heads_bound_the_split(tmp_path: Path) -> None:
    model = model_of(tmp_path, num_attention_heads=14, num_key_value_heads=2, hidden_size=896)
    found = plan(question(model, read_device("h200"), 8, closed(16, 16)))
    assert sorted(one.tensor for one in found.splits) == [1, 2]  # 14 heads divide by 1 and 2, not by 4 and 8


@pytest.mark.parametrize(("cards", "engine", "said"), [(1, "vllm", "cannot be planned"), (2, "llamacpp", "no layer")])
def test_bad_questions(tmp_path: Path, cards: int, engine: str, said: str) -> None:
    asked = question(model_of(tmp_path), read_device("h200"), cards, closed(1, 1))
    with pytest.raises(RequestError, match=said):
        plan(replace(asked, config=EngineConfig(engine=engine, model="m")))


def test_draws_are_the_same_each_time_and_wider_with_less_known(step_of: Callable[..., StepTime]) -> None:
    sure = step_of(overhead_s=1.0)
    assert {step.factors for step in draw_factors(sure, 5)} == {sure.factors}
    one, other = FACTORS.index("weights"), FACTORS.index("overhead")
    size = len(FACTORS)
    covariance = tuple(
        tuple(0.04 if row == column in (one, other) else 0.0 for column in range(size)) for row in range(size)
    )
    unsure = msgspec.structs.replace(sure, covariance=covariance)
    drawn = draw_factors(unsure, 2000)
    assert drawn == draw_factors(unsure, 2000)
    values = [step.factors[one] for step in drawn]
    mean = sum(values) / len(values)
    assert mean == pytest.approx(1.0, abs=0.02)
    assert sum((value - mean) ** 2 for value in values) / len(values) == pytest.approx(0.04, rel=0.15)


def test_a_measured_share_replaces_the_predicted(step_of: Callable[..., StepTime]) -> None:
    step = step_of(overhead_s=8e-3, collective_s=2e-3)
    parts = step.parts(sequences=1, context_tokens=0, prefill_tokens=0, pairs=0, sampled=1)
    assert communication_share(with_share(step, 0.2, 0.5), parts) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="cannot replace"):
        with_share(step, 0.0, 0.5)


@pytest.mark.parametrize(
    ("predicted", "measured", "interval", "verdict"),
    [
        (0.15, 0.20, (0.17, 0.23), "confirmed"),
        (0.45, 0.50, (0.40, 0.60), "confirmed"),
        (0.15, 0.45, (0.40, 0.50), "refuted"),
        (0.45, 0.10, (0.05, 0.15), "refuted"),
        (0.15, 0.32, (0.25, 0.40), "undecided"),
    ],
)
def test_verdict_by_the_side_of_the_limit(
    predicted: float, measured: float, interval: tuple[float, float], verdict: str
) -> None:
    found = judge_share(
        2, (predicted, Interval(low=0.1, high=0.2)), (measured, Interval(low=interval[0], high=interval[1])), "run"
    )
    assert found.verdict == verdict


def test_a_measurement_can_overturn_the_choice(tmp_path: Path) -> None:
    asked = question(model_of(tmp_path), read_device("h200"), 2, closed(2, 16))
    step = predict_from_datasheet(asked.model, asked.device, asked.config)
    predicted = plan_parallel(asked, step)
    share = shares_of(predicted)[2][0]
    measured = plan_parallel(asked, with_share(step, share, 0.7))  # as where peer access is shut
    found = confirm(predicted, measured, shares_of(measured), "trace t.json")
    assert (predicted.chosen, found.chosen) == ("TP 2 x DP 1", "TP 1 x DP 2")
    assert found.verdicts[0].verdict == "refuted"
    assert "predicted was TP 2 x DP 1; the measurement overturns it" in found.reason


def test_replicas_share_a_closed_loop(tmp_path: Path) -> None:
    # One client cannot use two copies: they do what one card does.
    found = plan(question(model_of(tmp_path), read_device("h200"), 2, closed(1, 8)))
    two = plan(question(model_of(tmp_path), read_device("h200"), 2, closed(2, 16)))
    assert figures(two, 1).output_tokens_per_s == pytest.approx(2 * figures(found, 1).output_tokens_per_s, rel=0.02)
