"""What simulate says beyond figures: where a promise breaks, what would keep it, what tokens cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from powerband.cli import main
from powerband.plan import Plan, write_plan
from tests.e2e.test_simulate_command import CONFIG

TRAFFIC = "in=300,out=40,arrivals=constant(2/s)"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def ask(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["simulate", "--device", "h100", "--requests", "40", "--json", *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_the_seeds_lesson_long_prompts_break_a_promise_that_says_what_it_holds_for(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    holds_for = "2 requests/s, prompts of 300 tokens on average and at most 300, answers of 40 and at most 40"
    write_plan(
        plan, Plan(engine="vllm", model=model, knobs={"max_num_seqs": 64}, slo="ttft=100ms", holds_for=holds_for)
    )
    code, found = ask(capsys, "--config", str(plan), "--traffic", TRAFFIC, "--breaking")
    assert code == 0
    assert found["holds"] is True
    assert found["holds_for"]["plan"] == found["holds_for"]["asked"]
    longest = 300 * found["breaking"]["prompts"]
    below, above = (f"in={round(longest * factor)},out=40,arrivals=constant(2/s)" for factor in (0.9, 1.15))
    assert ask(capsys, "--config", str(plan), "--traffic", below)[1]["holds"] is True
    code, found = ask(capsys, "--config", str(plan), "--traffic", above)
    assert code == 1
    assert found["holds"] is False
    assert found["holds_for"]["plan"] == holds_for
    assert found["holds_for"]["asked"] != holds_for


def test_an_impossible_promise_says_by_how_much_what_limits_it_and_what_would_keep_it(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # 16 GB of weights at 3.35 TB/s take at least 4.8 ms a token on an H100
    code, found = ask(capsys, model, "--engine", "vllm", "--traffic", TRAFFIC, "--slo", "tpot=4.5ms")
    assert code == 1
    assert "cannot be kept at any load" in found["shortfall"]
    assert "reading the weights" in found["shortfall"]
    changes = [one["change"] for one in found["alternatives"]]
    assert any(change.startswith("fp8 weights") for change in changes)
    for one in found["alternatives"]:
        assert one["gated"] is ("weights" in one["change"])
        assert one["attainment"] >= 0.95
    assert (
        main(["simulate", model, "--engine", "vllm", "--device", "h100", "--traffic", TRAFFIC, "--slo", "tpot=1us"])
        == 1
    )
    assert "no card of the catalogue is predicted to keep it" in capsys.readouterr().out


def test_cost_of_tokens_by_hand(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = ask(capsys, model, "--engine", "vllm", "--traffic", TRAFFIC, "--price", "3.6", "--replicas", "2")
    speed = found["metrics"]["output_tokens_per_s"]
    assert found["costs"] == [pytest.approx(2 * 3.6 / 3600 / speed * 1e6)]


def test_fewest_cards_hold_and_one_fewer_does_not(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    rush = "in=2000,out=100,arrivals=constant(60/s)"
    words = [model, "--engine", "vllm", "--traffic", rush, "--slo", "ttft=300ms,tpot=30ms"]
    _, found = ask(capsys, *words, "--objective", "cards")
    (cards,) = found["cards"]
    assert cards > 1
    assert ask(capsys, *words, "--replicas", str(cards))[1]["holds"] is True
    assert ask(capsys, *words, "--replicas", str(cards - 1))[1]["holds"] is False


def test_engines_and_formats_are_knobs_of_one_space(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM tries both formats, TGI, which spells it otherwise, its own; none that alters answers is called best."""
    sweep = ["--sweep", "engine=vllm,tgi", "--sweep", "quantization=none,fp8", "--set", "max_num_seqs=64"]
    busy = "in=300,out=40,concurrency=64"
    code, found = ask(capsys, model, "--traffic", busy, *sweep, "--price", "3", "--objective", "cost")
    assert code == 0
    tried = [(one["config"]["engine"], one["config"]["knobs"]) for one in found["sweep"]]
    assert tried == [
        ("vllm", {"max_num_seqs": 64, "quantization": "none"}),
        ("vllm", {"max_num_seqs": 64, "quantization": "fp8"}),
        ("tgi", {}),
    ]
    assert found["to_be_gated"] == [[], ["quantization"], []]
    wide, narrow, _ = found["costs"]
    assert narrow < wide  # half the bytes a step
    assert found["best"] != {"max_num_seqs": 64, "quantization": "fp8"}
    assert found["best_if_gated"] == {"engine": "vllm", "knobs": tried[1][1], "gate": ["quantization"]}


def test_guesses_that_are_always_right_shorten_a_token(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [model, "--engine", "vllm", "--traffic", "in=100,out=50,concurrency=1"]
    plain, guessed = ask(capsys, *words)[1], ask(capsys, *words, "--speculate", "3,1.0")[1]
    assert guessed["metrics"]["tpot_s"]["p50"] < 0.4 * plain["metrics"]["tpot_s"]["p50"]


@pytest.mark.parametrize(
    "words",
    [
        ["--objective", "cost"],
        ["--objective", "cards"],
        ["--breaking"],
        ["--price", "-1"],
        ["--speculate", "0,0.5"],
        ["--speculate", "3"],
        ["--speculate", "3,1.5"],
        ["--config", "/no/such/plan.toml"],
    ],
)
def test_a_wrong_request_is_two_lines(model: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    named = [] if "--config" in words else [model, "--engine", "vllm"]
    assert main(["simulate", *named, "--device", "h100", "--traffic", TRAFFIC, *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 2
