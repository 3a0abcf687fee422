"""``powerband quantize`` from the command line: plans, refusals before any work, and wrong requests."""

import json
from pathlib import Path

import pytest

from powerband.cli import main

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_plan_is_one_json_document_with_figures_or_reasons(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["quantize", str(model), "--plan", "--engine", "vllm", "--device", "a100-80gb", "--json",
         "--traffic", "in=256,out=64,concurrency=8", "--requests", "32"]
    )  # fmt: skip
    out, err = said(capsys)
    assert code == 0
    assert err == ""
    document = json.loads(out)
    by_method = {row["method"]: row for row in document["methods"]}
    assert by_method["awq"]["support"]["answer"] == "runs"
    assert by_method["awq"]["forecast"]["weight_bytes"] < document["as_it_is"]["weight_bytes"] / 2
    assert by_method["awq"]["forecast"]["output_tokens_per_s"] > 0
    assert "output_tokens_per_s" in by_method["awq"]["forecast"]["intervals"]
    assert by_method["fp8"]["support"]["answer"] == "slow"
    assert by_method["mlx4"]["support"]["answer"] == "refused"
    assert by_method["mlx4"]["missing"] == "refused"


def test_a_plan_reads_well_and_is_as_wide_as_a_pipe(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(model), "--plan", "--engine", "llamacpp", "--device", "rtx4090"]) == 0
    out, _ = said(capsys)
    assert "gguf:q4_k_m" in out
    assert "llama.cpp reads GGUF alone" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 120


def test_a_plan_without_anything_possible_answers_no(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["quantize", str(model), "--plan", "--engine", "llamacpp", "--device", "cpu", "--method", "gptq"])
    out, _ = said(capsys)
    assert code == 1
    assert out.startswith("Nothing of what was asked runs")


def test_impossible_work_is_refused_before_it_starts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seeds' pit: GPTQ weights for an engine that does not read them. Nothing is loaded: there are no weights."""
    code = main(
        ["quantize", str(model), "--method", "gptq", "--engine", "llamacpp", "--device", "cpu",
         "--out", str(tmp_path / "out"), "--calibration", str(tmp_path / "absent.jsonl")]
    )  # fmt: skip
    _, err = said(capsys)
    assert code == 2
    assert "llama.cpp reads GGUF alone" in err
    assert "nearest possible: gguf:q4_k_m" in err
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--method", "fp8", "--out", "x"], "no engine", "--engine any"),
        (["--plan", "--engine", "vlm"], "unknown engine", "vllm"),
        (["--engine", "vllm", "--out", "x"], "no method", "--plan"),
        (["--engine", "vllm", "--method", "fp8", "--out", "x", "--python", "/no/python"], "no interpreter", "--python"),
        (["--engine", "vllm", "--method", "fp8"], "no place", "--out"),
        (["--engine", "vllm", "--method", "fp9", "--out", "x"], "unknown method", "fp8"),
        (["--engine", "vllm", "--method", "gptq", "--out", "x", "--device", "h100"], "looks at text", "--calibration"),
        (["--engine", "vllm", "--method", "fp8", "--out", "x", "--samples", "0"], "--samples 0", "accepted"),
        (["--engine", "mlx", "--plan", "--set", "a=1"], "no knobs", "--set"),
    ],
)  # fmt: skip
def test_wrong_requests_take_two_lines(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str, hint: str
) -> None:
    assert main(["quantize", str(model), *arguments]) == 2
    out, err = said(capsys)
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def test_an_output_that_exists_is_not_overwritten(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    code = main(
        ["quantize", str(model), "--method", "fp8", "--engine", "vllm", "--device", "h100-80gb",
         "--out", str(tmp_path / "out"), "--quiet"]
    )  # fmt: skip
    assert code == 2
    assert "exists already" in said(capsys)[1]


def test_a_missing_tool_names_what_to_install(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["quantize", str(model), "--method", "fp8", "--engine", "vllm", "--device", "h100-80gb",
         "--out", str(tmp_path / "out"), "--quiet", "--memory-limit", "64GiB"]
    )  # fmt: skip
    _, err = said(capsys)
    assert code in (2, 3)  # 3 where this machine has less memory than an 8B model wants
    assert "pip install llmcompressor" in err or "memory: about" in err
    assert not (tmp_path / "out").exists()


def test_without_a_method_it_is_a_plan_and_calibration_text_is_looked_at(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``powerband quantize MODEL --calibration ours.jsonl``: what a person short of memory types first."""
    text = tmp_path / "ours.jsonl"
    text.write_text("\n".join(json.dumps({"prompt": f"question {number}"}) for number in range(40)), encoding="utf-8")
    code = main(["quantize", str(model), "--calibration", str(text), "--device", "h100-80gb", "--json"])
    document = json.loads(said(capsys)[0])
    assert code == 0
    assert document["engine"] == "vllm"
    assert document["calibration"]["samples"] == 40
    assert main(["quantize", str(model), "--calibration", str(text), "--device", "h100-80gb", "--method", "fp8"]) == 2
