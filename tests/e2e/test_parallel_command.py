"""``powerband simulate --plan`` from the command line: the document, the screen, measured shares, bad requests."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerband.cli import main
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.records.run import Trial
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import limits_of
from powerband.simulate.step_time import FACTORS, predict_from_datasheet
from powerband.stores.sqlite import Journal

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
FEW = "in=300,out=40,concurrency=2"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def ask(model: str, *more: str, traffic: str = FEW, count: int = 2) -> int:
    head = ["simulate", model, "--engine", "vllm", "--device", "h200", "--count", str(count), "--plan"]
    return main([*head, "--set", "max_model_len=4096", "--traffic", traffic, "--requests", "24", *more])


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_chosen_split_comes_first(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, "--json") == 0
    found = document(capsys)
    assert found["chosen"] == "TP 2 x DP 1"
    first, second = found["splits"]
    assert (first["tensor"], first["replicas"]) == (2, 1)
    assert first["config"]["knobs"]["tensor_parallel_size"] == 2
    assert first["figures"]["interval"]["low"] < first["figures"]["output_tokens_per_s"]
    assert second["figures"]["communication"]["run"] == 0.0
    assert found["step_basis"] == "computed"


def test_the_screen_answers_first(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, count=4, traffic="in=300,out=40,concurrency=64") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Take TP ")
    text = "\n".join(lines)
    for words in ("TP 4 x DP 1", "TP 2 x DP 2", "TP 1 x DP 4", "NVLink: 9.5 us", "to prove it:", "not calibrated"):
        assert words in text


@pytest.mark.parametrize("width", [80, 120])
def test_no_heading_or_figure_is_cut(
    model: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("powerband.cli.options.screen_width", lambda: width)
    assert ask(model, "--slo", "ttft=5s", count=4, traffic="in=300,out=40,concurrency=64") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for words in ("TP 4 x DP 1", "TP 2 x DP 2", "TP 1 x DP 4", "communication", "keeps", "best in", "tokens/s"):
        assert words in text


def test_a_promise_that_no_split_keeps_is_exit_code_1(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(model, "--slo", "tpot=10us") == 1
    assert "no split keeps the promise" in capsys.readouterr().out


def measured_runs(model: str, home: Path, communication: float) -> list[str]:
    """Two journaled runs, as of a machine whose all-reduces take ``communication`` times the datasheet's."""
    spec, device = read_model(model), read_device("h200")
    workload = Workload(
        requests=(RequestSpec(offset_ns=0, input_tokens=300, output_tokens=40),) * 24, source="test", concurrency=2
    )
    journal, names = Journal(home), []
    session = "s1"
    for tensor in (1, 2):
        config = EngineConfig(engine="vllm", model=model, knobs={"tensor_parallel_size": tensor})
        step = predict_from_datasheet(spec, device, config)
        factors = [
            communication if name == "communication" else f for name, f in zip(FACTORS, step.factors, strict=True)
        ]
        run = simulate(
            config, workload, msgspec.structs.replace(step, factors=tuple(factors)), limits_of(config, 1 << 20)
        )
        run = msgspec.structs.replace(run, run_id=f"tp{tensor}", basis="measured")
        trial = Trial(n=tensor, purpose="calibrate", config=config, status="done", run_id=run.run_id)
        journal.add_trial(session, run.run_id, trial, run)
        names.append(run.run_id)
    return names


@pytest.mark.parametrize(("communication", "verdict", "chosen"), [(1.0, "confirmed", 2), (12.0, "refuted", 1)])
def test_runs_at_tp_2_and_1_measure_the_communication(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], communication: float, verdict: str, chosen: int
) -> None:
    home = tmp_path / "home"
    given = [word for name in measured_runs(model, home, communication) for word in ("--calibrate", name)]
    assert ask(model, "--home", str(home), *given, "--json") == 0
    found = document(capsys)
    assert found["verdicts"][0]["verdict"] == verdict
    assert found["splits"][0]["tensor"] == chosen
    assert found["step_basis"] == "measured"


def trace_of(folder: Path, spoken: int) -> Path:
    """A step of 100 us of which ``spoken`` are an all-reduce that nothing hides, 64 times."""
    events: list[dict[str, Any]] = []
    for n in range(64):
        names = (("gemm", 0, 100 - spoken), ("void cross_device_reduce_1stage<bf16, 2>", 100 - spoken, spoken))
        for name, start, duration in names:
            args = {"correlation": len(events), "stream": 7, "device": 0}
            events.append(
                {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 100 * n + start, "dur": duration,
                 "args": args}
            )  # fmt: skip
    path = folder / f"trace-{spoken}.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.parametrize(("spoken", "verdict", "chosen"), [(20, "confirmed", 2), (60, "refuted", 1)])
def test_a_trace_measures_it_too(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoken: int, verdict: str, chosen: int
) -> None:
    assert ask(model, "--trace", f"2={trace_of(tmp_path, spoken)}", "--json") == 0
    found = document(capsys)
    assert found["verdicts"][0]["measured"] == pytest.approx(spoken / 100)
    assert found["verdicts"][0]["verdict"] == verdict
    assert found["splits"][0]["tensor"] == chosen
    assert ask(model, "--trace", f"2={trace_of(tmp_path, spoken)}") == 0
    assert f"measured {spoken} %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--sweep", "max_num_seqs=1,2"], "--plan tries every split itself"),
        (["--replicas", "2"], "--plan tries every split itself"),
        (["--count", "1"], "1 card(s) cannot be planned"),
        (["--trace", "trace.json"], "cannot read --trace"),
        (["--trace", "8=trace.json"], "trace.json"),
        (["--engine", "llamacpp", "--set", "n_ctx=4096"], "splits no layer over cards"),
    ],
)
def test_bad_requests(model: str, capsys: pytest.CaptureFixture[str], more: list[str], error: str) -> None:
    head = ["simulate", model, "--device", "h200", "--count", "2", "--plan", "--traffic", FEW, "--requests", "4"]
    assert main([*head, "--engine", "vllm", *more]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert error in lines[0]
    assert lines[1].startswith("hint: ")


def test_a_trace_alone_belongs_to_locate(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["simulate", model, "--engine", "vllm", "--device", "h200", "--traffic", FEW, "--trace", "2=x.json"]) == 2
    )
    assert "powerband locate" in capsys.readouterr().err


def test_the_columns_of_the_plan_are_explained(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    head = ["simulate", model, "--engine", "vllm", "--device", "h200", "--count", "2", "--plan"]
    main([*head, "--traffic", FEW, "--requests", "4"])
    text = " ".join(capsys.readouterr().out.split())
    assert "at the mean number of sequences in it" in text
    assert "best in: of 16 draws" in text


def test_a_split_that_the_engine_refuses_is_none(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM wants a token of each sequence in a step."""
    assert ask(model, "--set", "max_num_seqs=256", "--set", "max_num_batched_tokens=128", "--json") == 1
    found = document(capsys)
    assert found["chosen"] is None
    words = "max_num_seqs=256 is larger than max_num_batched_tokens=128"
    assert [split["shortage"] for split in found["splits"]] == [words, words]
