"""powerband simulate from the command line: the document, the sweep, the answer as exit code, and bad requests."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from powerband.cli import main

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
TRAFFIC = "in=300,out=40,arrivals=constant(20/s)"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def ask(model: str, *more: str) -> int:
    return main(
        ["simulate", model, "--engine", "vllm", "--device", "h100", "--traffic", TRAFFIC, "--requests", "60", *more]
    )


def test_document_has_metrics_intervals_and_their_basis(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, "--set", "max_num_seqs=64", "--slo", "ttft=1s,tpot=50ms", "--json") == 0
    found = document(capsys)
    assert found["basis"] == "simulated"
    assert found["step_basis"] == "computed"
    assert found["config"] == {"max_num_seqs": 64}
    assert found["metrics"]["completed"] == 60
    assert found["holds"] is True
    low, high = (found["intervals"]["tpot_p50_s"][end] for end in ("low", "high"))
    assert low < found["metrics"]["tpot_s"]["p50"] < high


def test_a_promise_that_does_not_hold_is_exit_code_1(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, "--slo", "ttft=1ms,tpot=1ms", "--json") == 1
    assert document(capsys)["holds"] is False


def test_sweep_marks_the_frontier(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, "--sweep", "max_num_seqs=1,8,64", "--json") == 0
    found = document(capsys)
    assert [one["config"]["knobs"]["max_num_seqs"] for one in found["sweep"]] == [1, 8, 64]
    assert {"max_num_seqs": 1} in found["frontier"]  # alone in the batch: nobody is faster per token
    assert {"max_num_seqs": 8} in found["frontier"]  # 20 requests/s of 40 tokens at 8 ms each keep 6.4 of them busy


def test_replicas_share_the_load(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for replicas in ("1", "4"):
        assert ask(model, "--set", "max_num_seqs=2", "--replicas", replicas, "--json") == 0
        found.append(document(capsys))
    assert found[1]["metrics"]["e2e_s"]["p50"] < found[0]["metrics"]["e2e_s"]["p50"]
    assert "4 replicas" in found[1]["notes"][0]


def test_text_says_what_it_rests_on(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, "--sweep", "max_num_seqs=1,64", "--slo", "ttft=1s") == 0
    text = capsys.readouterr().out
    assert "not calibrated" in text
    assert "the promise holds" in text


def test_a_sweep_answers_first_and_writes_attainment_one_way(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of 300 and 40 tokens at 6 to 8 ms: one at a time serves some 4 of the 20 that come each second."""
    assert ask(model, "--sweep", "max_num_seqs=1,64", "--slo", "ttft=1s") == 0
    lines = capsys.readouterr().out.splitlines()
    best = " ".join(" ".join(lines).split("simulated;")[0].split())
    assert best.startswith("best of 2: max_num_seqs=64; ")
    assert best.endswith("; the promise holds")
    for words in ("output tokens/s", "attainment 100.0 %", "TTFT p50 ", "TPOT p50 "):
        assert words in best
    written = [re.findall(r"attainment (?:is )?([^ ,]+ %)", " ".join(line.split())) for line in lines]
    shares = [share for found in written for share in found]
    assert shares[-1] == "100.0 %"
    assert len(shares) == 4  # of the best, of each config, and why one does not keep the promise
    assert all(re.fullmatch(r"[0-9]+\.[0-9] %", share) for share in shares)
    assert max(map(len, lines)) <= 120


def test_a_sweep_that_keeps_no_promise_names_what_comes_nearest(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate of 20/s with one request at a time: the first is answered in time, later ones wait ever longer."""
    sweep = ["--sweep", "max_num_seqs=1,2", "--slo", "ttft=100ms,attainment=0.99"]
    assert ask(model, *sweep) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("none of 2 keeps the promise; nearest: max_num_seqs=2; ")
    assert ask(model, *sweep, "--json") == 1
    assert document(capsys)["best"] is None


def test_the_best_of_a_sweep_alters_no_answers(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, "--sweep", "quantization=none,fp8", "--set", "max_num_seqs=64", "--json") == 0
    found = document(capsys)
    assert found["best"] == {"max_num_seqs": 64, "quantization": "none"}


@pytest.mark.parametrize(
    ("more", "error", "hint"),
    [
        (["--engine", "qqq"], "unknown engine to simulate 'qqq'", "accepted"),
        (["--set", "max_num_sequences=4"], "unknown knob 'max_num_sequences'", "max_num_seqs"),
        (["--sweep", "max_num_seqs"], "cannot read --sweep 'max_num_seqs'", "key=a,b,c"),
        (["--sweep", "max_num_seqs=" + ",".join(map(str, range(1, 600)))], "--sweep asks for 599 configs", "500"),
        (["--replicas", "0"], "--replicas 0", "1 to 1000"),
        (["--replicas", "2", "--traffic", "in=9,out=9,concurrency=2"], "closed loop", "arrivals"),
        (["--deadline", "60"], "cannot read duration '60'", "500ms"),
        (["--count", "0"], "count 0", "1 to 4096"),
        (["--count", "4", "--set", "tensor_parallel_size=3"], "tensor_parallel_size=3 does not go into 4 cards", "4"),
        (["--set", "pipeline_parallel_size=2"], "pipeline_parallel_size=2 is not simulated", "--replicas"),
        (["--count", "2", "--engine", "llamacpp"], "llamacpp splits no layer over 2 cards", "--replicas 2"),
        (["--device", "h1000"], "unknown device 'h1000'", "h100"),
        (["--calibrate", "nothing"], "nothing", ""),
    ],
)
def test_bad_requests_are_two_lines(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], error: str, hint: str
) -> None:
    assert ask(model, "--home", str(tmp_path / "home"), *more) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert len(lines) == 2
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]


def test_a_long_wait_is_written_in_seconds_and_large_figures_without_an_exponent(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue of 4,000 requests on one seat waits for minutes; 60 at once are served at thousands of tokens/s."""
    burst = ["--traffic", "in=3000,out=200,arrivals=burst", "--requests", "4000"]
    main(["simulate", model, "--engine", "vllm", "--device", "h100", *burst])
    text = capsys.readouterr().out
    assert "e+0" not in text
    (line,) = (line for line in text.splitlines() if "ttft_p99" in line)
    assert " s [" in line
    assert float(line.split()[1].replace(",", "")) > 10


def test_cards_are_tensor_parallel_in_memory_and_in_time(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two cards without a word on how: as if tensor_parallel_size=2 were set, in every figure."""
    found = []
    for words in (["--count", "2"], ["--set", "tensor_parallel_size=2"], ["--count", "1"]):
        assert ask(model, *words, "--price", "3", "--json") == 0
        found.append(document(capsys))
    by_count, by_knob, one = found
    assert by_count["config"] == by_knob["config"] == {"tensor_parallel_size": 2}
    assert by_count["metrics"] == by_knob["metrics"]
    assert by_count["costs"] == by_knob["costs"]
    # 16 GB of weights bind a step: half of them take little more than half as long.
    assert by_count["metrics"]["tpot_s"]["p50"] < 0.8 * one["metrics"]["tpot_s"]["p50"]


def test_cards_beyond_the_tensor_parallel_ones_are_replicas(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for words in (["--count", "4"], ["--replicas", "2"]):
        assert ask(model, "--set", "tensor_parallel_size=2", "--price", "3", *words, "--json") == 0
        found.append(document(capsys))
    by_count, by_replicas = found
    assert by_count["metrics"] == by_replicas["metrics"]
    assert "2 replicas" in by_count["notes"][0]
    # Four cards at 3 an hour each, over the tokens of an hour.
    per_hour = 3600 * by_count["metrics"]["output_tokens_per_s"]
    assert by_count["costs"] == [pytest.approx(1e6 * 4 * 3 / per_hour)]
    assert by_replicas["costs"] == by_count["costs"]


def test_an_engine_without_memory_rules_is_simulated_too(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """MLX takes from memory what it needs: no ledger bounds its cache, and none is asked for."""
    argv = ["simulate", model, "--device", "h100", "--traffic", TRAFFIC, "--requests", "20", "--json"]
    assert main([*argv, "--engine", "mlx"]) == 0
    assert document(capsys)["metrics"]["completed"] == 20
    assert main([*argv, "--sweep", "engine=mlx,vllm"]) == 0
    assert [one["refused"] for one in document(capsys)["sweep"]] == [None, None]


def test_what_is_longer_than_the_models_context_is_not_simulated_as_served(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model holds 8,192 tokens; no setting of vLLM's makes room for 8,100 and 100."""
    for more in ([], ["--set", "max_model_len=16384"]):
        assert ask(model, "--traffic", "in=8100,out=100,concurrency=2", *more, "--json") == 1
        refused = document(capsys)["refused"]
        assert "8,200 tokens together" in refused
        assert "the longest sequence is 8,192" in refused
    assert ask(model, "--traffic", "in=8092,out=100,concurrency=2", "--json") == 0


def test_a_config_that_the_engine_refuses_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM wants a token of each sequence in a step. How many cards this machine has is no matter."""
    sweep = ["--set", "max_num_seqs=256", "--sweep", "max_num_batched_tokens=128,512"]
    assert ask(model, "--count", "2", *sweep, "--json") == 0
    narrow, wide = document(capsys)["sweep"]
    assert narrow["refused"] == "max_num_seqs=256 is larger than max_num_batched_tokens=128"
    assert (narrow["metrics"], narrow["holds"]) == (None, None)
    assert wide["refused"] is None
    assert ask(model, "--set", "max_num_seqs=256", "--sweep", "max_num_batched_tokens=128,64", "--slo", "ttft=9s") == 1
    assert capsys.readouterr().out.startswith("none of 2 can serve this traffic\n")
    assert (
        ask(model, "--set", "max_num_seqs=256", "--set", "max_num_batched_tokens=128", "--slo", "e2e=9s", "--json") == 1
    )
    assert document(capsys)["holds"] is False
