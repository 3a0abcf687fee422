"""Proof over a real socket: causes planted in the fake engine, tested by changing one thing at a time."""

import json
from pathlib import Path

import pytest

from powerband.cli import main
from powerband.engines.fake import Fake
from powerband.prove import Subject, prove
from powerband.records.config import EngineConfig, Value
from powerband.records.workload import RequestSpec, Workload

NS = 1_000_000_000


def test_what_is_planted_is_proved(tmp_path: Path) -> None:
    # A step takes 4 ms whatever is in it: one slot answers 8 tokens in 32 ms and serves 31 of 50 requests a second.
    # Text costs 60 ms of a serial tokenizer, token ids nothing: as text the same requests fall behind.
    knobs: dict[str, Value] = {"slots": 1, "step_ms": 4.0, "step_ms_per_seq": 0.05, "text_ms": 60.0}
    requests = tuple(RequestSpec(offset_ns=k * NS // 50, input_tokens=8, output_tokens=8) for k in range(30))
    told: list[str] = []
    found = prove(
        Subject(
            config=EngineConfig(engine="fake", model="fake", knobs=knobs),
            workload=Workload(requests=requests, source="test"),
            folder=tmp_path,
            name="prove",
            command="test",
            cut_s=4.0,
            engine=Fake(),
            fixed=frozenset(knobs),
            repeats=2,
            tell=told.append,
        )
    )
    # Arrivals last 29/50 s. Beside the traffic come text and ids, and four sizes of a batch, each twice.
    alone, tests = "2 windows of 580 ms, about 1.16 s", "12 windows of 580 ms, about 6.96 s"
    assert told[0] == f"the traffic as it is: {alone}; after it come at least {tests}"
    first = found.findings[0]
    if first.cause in ("undecided", "client_limited"):
        pytest.skip(f"the machine was too busy to judge the engine: {found.reason}")
    assert any("starts of the engine" in line for line in told)
    said: dict[tuple[str, str], str] = {(proof.test, proof.cause): proof.status for proof in found.proofs}
    assert found.verdict == "no_batching", found.reason
    # On a busy machine an interval from two windows may be too wide; it must never point the other way.
    for test, cause in (
        ("more seats", "no_batching"),
        ("batch sweep", "no_batching"),
        ("token ids against text", "tokenizer_bound"),
    ):
        assert said[test, cause] != "refuted", found.proofs
    assert first.proof is not None
    assert first.proof.gain > 1.1
    assert all((tmp_path / name / "run.json").is_file() for proof in found.proofs for name in proof.run_ids)
    assert any(note.startswith(f"{len(found.proofs)} tests: 2 windows a side") for note in found.notes)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["http://127.0.0.1:9", "--prove", "--engine", "fake"], "--engine is for a model to start"),
        (["fake", "--prove", "--engine", "nope"], "unknown engine 'nope'"),
        (["fake", "--prove", "--engine", "fake", "--set", "slot=3"], "unknown knob 'slot'"),
        (["fake", "--engine", "fake"], "only with --prove"),
        (["facts.toml"], "unknown field `card`"),
    ],
)
def test_wrong_requests_are_refused_before_anything_starts(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facts.toml").write_text("card = 2")
    assert main(["locate", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 2


def test_stated_facts_are_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facts.toml").write_text("cards = 2\none_card = {before = 29, after = 17}")
    assert main(["locate", "facts.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "communication_bound"
    # Two cards do 17/29 of the work of one: 71 % of what they could do is lost.
    assert found["findings"][0]["share"] == pytest.approx(1 - 17 / 29 / 2)
