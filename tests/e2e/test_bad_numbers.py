"""Numbers that no command can use: refused in two lines wherever an option is offered, and never quietly ignored."""

import json
from pathlib import Path

import pytest

from powerband.cli import main

QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
CLOSED = "in=128,out=32,concurrency=1"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    return str(tmp_path)


def commands(model: str) -> dict[str, list[str]]:
    """Every command that reads traffic without an engine, up to its traffic."""
    vllm = ["--device", "h100", "--engine", "vllm"]
    return {
        "account": ["account", model, *vllm],
        "compare": ["account", model, "--compare", *vllm],
        "simulate": ["simulate", model, *vllm],
        "plan": ["simulate", model, "--plan", "--count", "2", *vllm],
        "quantize": ["quantize", model, "--plan", *vllm],
        "probe": ["locate", "http://127.0.0.1:9", "--probe"],
        "prove": ["locate", "http://127.0.0.1:9", "--prove"],
    }


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert code == 2, out + err
    assert out == ""
    lines = err.strip().splitlines()
    assert lines[-2].startswith("error: ")
    assert lines[-1].startswith("hint: ")
    return err


@pytest.mark.parametrize("command", commands(""))
@pytest.mark.parametrize(
    "wrong", [["--scale-outputs", "-1"], ["--seed", "-1"], ["--requests", "0"]], ids=lambda wrong: wrong[0]
)
def test_a_number_that_cannot_be_is_refused_by_every_command(
    model: str, capsys: pytest.CaptureFixture[str], command: str, wrong: list[str]
) -> None:
    assert wrong[0] in refused(capsys, *commands(model)[command], "--traffic", CLOSED, *wrong)


def test_longer_answers_take_simulate_longer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer of 64 tokens takes 63 steps after the first, one of 32 takes 31: about twice the time."""
    took = []
    for scale in ("1", "2"):
        asked = [*commands(model)["simulate"], "--traffic", CLOSED, "--scale-outputs", scale, "--requests", "3"]
        assert main([*asked, "--json"]) == 0
        took.append(json.loads(capsys.readouterr().out)["metrics"]["e2e_s"]["p50"])
    assert took[1] / took[0] == pytest.approx(2.0, rel=0.1)
