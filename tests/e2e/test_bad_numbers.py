"""Numbers that no command can use: refused in two lines wherever an option is offered, and never quietly ignored."""

import json
from pathlib import Path

import pytest

from powerband.cli import main
from powerband.records.errors import RequestError
from powerband.records.units import parse_bytes

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


@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_traffic_of_which_no_request_fits_is_the_answer_no(
    model: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Six million tokens at 28 layers x 2 x 4 heads x 128 x 2 bytes are 344 GB: more than any one card here."""
    traffic = ["--traffic", "in=6000000,out=5,concurrency=1", "--requests", "3"]
    assert main([*commands(model)[command], *traffic]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "no request fits: the shortest prompt and answer are 6,000,005 tokens together" in text
    assert "output_tokens_per_s" not in text


def test_a_context_shorter_than_the_traffic_is_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    traffic = ["--traffic", "in=5000,out=5,concurrency=1", "--requests", "3", "--slo", "ttft=1s"]
    assert main([*commands(model)["simulate"], *traffic, "--set", "max_model_len=4096", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "5,005 tokens together, and the longest sequence is 4,096" in found["refused"]
    assert found["holds"] is False


def test_requests_too_long_to_be_served_are_counted(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    rows = "".join(f"2023-11-16 18:17:0{n}.0000000,{length},8\n" for n, length in enumerate((20, 5000, 30, 6000)))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert main([*commands(model)["simulate"], "--traffic", str(trace), "--set", "max_model_len=4096"]) == 0
    assert "2 of 4 requests are refused" in capsys.readouterr().out


def test_heads_that_the_cards_cannot_share_do_not_fit(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """28 heads over 3 cards: vLLM refuses to start, whatever the memory; over 2 and 4 it does not."""
    account = ["account", model, "--device", "rtx4090", "--engine", "vllm", "--count"]
    assert main([*account, "3"]) == 1
    assert "28 attention heads cannot be shared evenly by 3 cards" in capsys.readouterr().out
    assert [main([*account, count]) for count in ("2", "4")] == [0, 0]
    capsys.readouterr()
    simulate = [*commands(model)["simulate"], "--traffic", CLOSED, "--requests", "3", "--count", "3"]
    assert main([*simulate, "--set", "tensor_parallel_size=3"]) == 1
    assert "28 attention heads" in capsys.readouterr().out


POISSON = "in=128,out=32,arrivals=poisson(4/s)"
HUGE = "9" * 20


@pytest.mark.parametrize("command", ["account", "simulate"])
@pytest.mark.parametrize(
    "wrong",
    [
        ["--traffic", f"in={HUGE},out=5,concurrency=1"],
        ["--traffic", "in=999999999999,out=1,concurrency=1"],
        ["--traffic", f"in=uniform(1..{HUGE}),out=5,concurrency=1"],
        ["--traffic", f"in=9,out=5,concurrency={HUGE}"],
        ["--traffic", f"in=9,out=5,concurrency=1,prefix=4,prefixes={HUGE}"],
        ["--traffic", "in=9,out=5,arrivals=poisson(1e-300/s)"],
        ["--traffic", "in=9,out=5,arrivals=constant(1e300/s)", "--scale-rate", "1e300"],
        ["--traffic", "in=9,out=5,arrivals=constant(1e-9/s)"],
        ["--traffic", CLOSED, "--scale-lengths", "1e300"],
        ["--traffic", CLOSED, "--scale-lengths", "1e8"],
        ["--traffic", CLOSED, "--scale-outputs", "1e300"],
        ["--traffic", POISSON, "--scale-rate", "1e-300"],
        ["--traffic", CLOSED, "--requests", HUGE],
    ],
    ids=" ".join,
)
def test_a_number_beyond_every_machine_is_refused(
    model: str, capsys: pytest.CaptureFixture[str], command: str, wrong: list[str]
) -> None:
    refused(capsys, *commands(model)[command], *wrong)


@pytest.mark.parametrize("wrong", ["1e99h", "8785h", "0.5ns", "1e-99s"])
@pytest.mark.parametrize("command", ["calibrate", "tune", "simulate"])
def test_a_time_beyond_a_year_or_below_a_nanosecond_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, wrong: str
) -> None:
    option = "--deadline" if command == "simulate" else "--budget"
    asked = [command, model, "--engine", "vllm", "--device", "h100", option, wrong, "--home", str(tmp_path / "home")]
    said = refused(capsys, *asked)
    assert f"duration '{wrong}'" in said
    assert "1ns to 366 days" in said
    assert not (tmp_path / "home").exists()


def test_a_size_beyond_every_machine_is_refused() -> None:
    assert [parse_bytes(size) for size in ("1B", "1024TiB")] == [1, 1 << 50]
    for size in ("0.4B", "1025TiB", "1e99GiB"):
        with pytest.raises(RequestError, match=f"size '{size}'") as error:
            parse_bytes(size)
        assert "1B to 1024TiB" in error.value.hint


@pytest.mark.parametrize("row", ["1,{},8", "1e300,20,8"])
def test_a_trace_beyond_every_machine_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str
) -> None:
    trace = tmp_path / "burst.csv"
    header = "Timestamp,Request tokens,Response tokens\n0,20,8\n"
    trace.write_text(header + row.format(HUGE) + "\n")
    refused(capsys, *commands(model)["simulate"], "--traffic", str(trace))


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("compare", ["--price", "rtx4090=-1"]),
        ("compare", ["--price", "rtx4090=nan"]),
        ("compare", ["--price", "rtx4090=inf"]),
        ("compare", ["--price", "rtx4090=1", "--price", "rtx4090=2"]),
        ("account", ["--price", "rtx4090=1"]),
        ("account", ["--slo", "ttft=0"]),
        ("account", ["--requests", "0"]),
        ("account", ["--scale-lengths", "0"]),
        ("quantize", ["--slo", "ttft=0"]),
        ("quantize", ["--requests", "0"]),
        ("probe", ["--slo", "e2e=5s,e2e=6s"]),
        ("simulate", ["--slo", "e2e=5s,e2e=6s"]),
        ("simulate", ["--slo", "e2e=5s,attainment=0.9,percentile=p99"]),
        ("simulate", ["--set", "max_num_seqs=3", "--set", "max_num_seqs=4"]),
        ("simulate", ["--price", "inf"]),
        ("plan", ["--set", "tensor_parallel_size=2"]),
        ("plan", ["--slo", "e2e=5s", "--breaking"]),
        ("plan", ["--price", "2"]),
        ("plan", ["--speculate", "3,0.7"]),
        ("plan", ["--router", "round_robin"]),
    ],
)
def test_what_would_be_passed_over_is_refused(
    model: str, capsys: pytest.CaptureFixture[str], command: str, wrong: list[str]
) -> None:
    refused(capsys, *commands(model)[command], *wrong)


@pytest.mark.parametrize("effect", ["nan", "-5", "inf"])
def test_an_effect_that_is_no_share_is_refused(capsys: pytest.CaptureFixture[str], effect: str) -> None:
    assert "--minimum-effect" in refused(capsys, "verify", "a", "b", f"--minimum-effect={effect}")
