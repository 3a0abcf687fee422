"""The journal and report commands over every kind of session, none of which was run here."""

import json
import sqlite3
from pathlib import Path

import msgspec
import pytest

from powerband.cli import main
from powerband.cli.session_lock import locked
from powerband.cli.sessions import held
from powerband.cli.stored import calibrating_runs, loop_session
from powerband.probes.device import device_catalogue
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError, RequestError
from powerband.records.sample import DeviceSample
from powerband.stores.run_dir import write_run
from powerband.stores.sqlite import Journal
from tests.unit.test_stores import make_run, make_trial

VLLM, FAKE = EngineConfig(engine="vllm", model="m"), EngineConfig(engine="fake", model="any")
LOOP = '{"model": "m", "engine": "fake"}'


def said(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("command", ["load", "calibrate"])
def test_a_session_that_keeps_its_command_line_is_listed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    journal = Journal(tmp_path)
    first = journal.begin("loop", LOOP)
    other = journal.begin(command, f"powerband {command} 'a b'")
    journal.close()
    code, out, _ = said(capsys, "journal", "--json", "--home", tmp_path)
    assert code == 0
    assert {row["session_id"]: row["request"] for row in json.loads(out)} == {
        first.session_id: json.loads(LOOP),
        other.session_id: f"powerband {command} 'a b'",
    }
    code, out, _ = said(capsys, "journal", other.session_id, "--json", "--home", tmp_path)
    assert (code, len(json.loads(out))) == (0, 1)


def filled(home: Path) -> None:
    """A journal of enough pages that each table has some beyond the schema's."""
    journal = Journal(home)
    for n in range(40):
        session = journal.begin("loop", LOOP + " " * 400)
        journal.add_trial(session.session_id, "baseline", make_trial(n, None), None)
        journal.put_document(session.session_id, "report", b"{}" * 300)
    journal.close()


COMMANDS = [
    ["journal"],
    ["journal", "--json"],
    ["report"],
    ["loop", "--resume"],
    ["load", "http://127.0.0.1:9", "--model", "m", "--traffic", "in=2,out=2,concurrency=1", "--requests", "1"],
]


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_a_journal_with_overwritten_pages_is_said_to_be_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    """The schema is on the first page, so that such a file still opens."""
    filled(tmp_path)
    path = tmp_path / "journal.sqlite"
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
    code, out, err = said(capsys, *argv, "--home", tmp_path)
    assert (code, out) == (3, "")
    assert "journal" in err
    assert err.splitlines()[-1].startswith("hint: ")


@pytest.mark.parametrize("table", ["trial", "document", "session"])
def test_a_row_that_is_no_record_is_said_to_be_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    filled(tmp_path)
    change = {"trial": "record=x'00'", "document": "body=x'00'", "session": "status='odd'"}[table]
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute(f"UPDATE {table} SET {change}")
    db.close()
    code, out, err = said(capsys, "journal", "--home", tmp_path)
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].startswith("hint: ")


def test_the_page_of_a_load_is_refused_with_the_command_that_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path)
    load = journal.begin("load", "powerband load u")
    journal.add_trial(load.session_id, "load-1", make_trial(1, "load-7"), None)
    other = journal.begin("calibrate", "powerband calibrate m")
    journal.close()
    code, _, err = said(capsys, "report", load.session_id, "--home", tmp_path)
    assert code == 2
    assert "a load, which has no page" in err
    assert "powerband load --show load-7" in err
    assert "--resume" not in err
    code, _, err = said(capsys, "report", other.session_id, "--home", tmp_path)
    assert code == 2
    assert f"powerband journal {other.session_id}" in err
    for argv in (["report"], ["loop", "--resume"]):
        code, _, err = said(capsys, *argv, "--home", tmp_path)
        assert code == 2
        assert "holds no loop" in err


@pytest.mark.parametrize("command", ["loop", "tune"])
def test_the_last_loop_is_meant_whatever_was_run_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    journal = Journal(tmp_path)
    loop = journal.begin(command, LOOP)
    journal.begin("load", "powerband load u")
    journal.close()
    code, _, err = said(capsys, "report", "--home", tmp_path)
    assert code == 2
    assert f"powerband {command} --resume {loop.session_id}" in err
    assert loop_session(Journal(tmp_path), None) == loop


@pytest.mark.parametrize(
    ("command", "resumes"), [("loop", True), ("tune", True), ("load", False), ("calibrate", False), ("doctor", False)]
)
def test_only_what_can_go_on_is_said_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, resumes: bool
) -> None:
    def stopped(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("powerband.cli._dispatch", stopped)
    code, _, err = said(capsys, command)
    assert code == 130
    assert ("--resume" in err) == resumes


def statuses(capsys: pytest.CaptureFixture[str], home: Path) -> list[str]:
    return [row["status"] for row in json.loads(said(capsys, "journal", "--json", "--home", home)[1])]


@pytest.mark.parametrize("command", ["load", "loop", "calibrate"])
def test_a_session_that_nobody_runs_is_not_said_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    journal = Journal(tmp_path)
    session = journal.begin(command, LOOP)
    assert statuses(capsys, tmp_path) == ["killed"]
    with locked(journal, session):
        assert statuses(capsys, tmp_path) == ["running"]
    assert statuses(capsys, tmp_path) == ["killed"]
    assert "killed" in said(capsys, "journal", "--home", tmp_path)[1]
    journal.end(session.session_id, "stopped")
    assert statuses(capsys, tmp_path) == ["stopped"]
    journal.close()


def test_a_load_spends_no_engine_time_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path)
    load = journal.begin("load", "powerband load u")
    journal.add_trial(load.session_id, "load-1", make_trial(1, None), None)
    journal.end(load.session_id, "done")
    journal.close()
    out = said(capsys, "journal", "--home", tmp_path)[1]
    (row,) = (line for line in out.splitlines() if load.session_id in line)
    assert row.split() == [load.session_id, "done", "1", "–", "–"]


def test_a_request_that_proved_wrong_is_not_the_one_that_resume_goes_on_with(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    good = journal.begin("tune", LOOP)
    for error, kept in ((RequestError("too small a budget"), False), (EngineError("it did not start"), True)):
        session = journal.begin("tune", LOOP)
        with pytest.raises(type(error)), held(journal, session):
            raise error
        assert (session.session_id in {one.session_id for one in journal.sessions()}) is kept
        assert loop_session(journal, None).session_id == (session if kept else good).session_id
    begun = journal.begin("tune", LOOP)
    journal.add_trial(begun.session_id, "baseline", make_trial(1, None), None)
    with pytest.raises(RequestError), held(journal, begun):
        raise RequestError("found later")
    assert journal.session(begun.session_id).status == "failed"
    journal.close()


WRONG = {
    "--task": "/nope.jsonl",
    "--limits": "nope",
    "--prompts": "-1",
    "--answer-tokens": "-1",
    "--judge-timeout": "0s",
    "--device": "nope",
}


@pytest.mark.parametrize("option", WRONG)
@pytest.mark.parametrize("command", ["tune", "loop"])
def test_an_option_that_is_wrong_is_refused_where_it_is_not_needed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    home = str(tmp_path / "home")
    traffic = ["--traffic", "in=2,out=2,arrivals=poisson(5/s)", "--budget", "1s", "--home", home]
    code, _, err = said(capsys, command, "fake", "--engine", "fake", *traffic, option, WRONG[option])
    assert code == 2
    assert WRONG[option] in err
    assert not (tmp_path / "home").exists()


def test_steps_of_another_engine_calibrate_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    session = journal.begin("tune", LOOP)
    journal.add_trial(session.session_id, "baseline", make_trial(1), make_run())
    for name in ("r1", session.session_id):
        assert calibrating_runs(journal, [name], [VLLM, FAKE], None) == [make_run()]
        with pytest.raises(RequestError, match="no run of this engine"):
            calibrating_runs(journal, [name], [VLLM], None)
    assert calibrating_runs(journal, [], [VLLM], None) == []
    journal.close()


@pytest.mark.parametrize(
    "name", ["org/Model", "/models/Model/", "~/.cache/huggingface/hub/models--org--Model/snapshots/0123abcd"]
)
def test_steps_of_another_model_calibrate_nothing(tmp_path: Path, name: str) -> None:
    """A model is known by its own name, wherever it lies."""
    journal = stored(tmp_path, EngineConfig(engine="vllm", model="/elsewhere/Model"))
    assert len(calibrating_runs(journal, ["r1"], [msgspec.structs.replace(VLLM, model=name)], None)) == 1
    with pytest.raises(RequestError, match=r"holds no run of this model \(seen: Model\)"):
        calibrating_runs(
            journal, ["r1"], [msgspec.structs.replace(VLLM, model=name.replace("Model", "Model-AWQ"))], None
        )
    # A model of the same name on another engine of the search is another matter.
    with pytest.raises(RequestError, match=r"holds no run of this model \(seen: Model\)"):
        calibrating_runs(journal, ["r1"], [VLLM, EngineConfig(engine="sglang", model="Model")], None)


def test_a_model_in_the_folder_one_stands_in_has_that_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = stored(tmp_path / "home", EngineConfig(engine="vllm", model="/elsewhere/Model"))
    (tmp_path / "Model").mkdir()
    monkeypatch.chdir(tmp_path / "Model")
    assert len(calibrating_runs(journal, ["r1"], [msgspec.structs.replace(VLLM, model=".")], None)) == 1


def test_a_session_that_is_resumed_runs_again_until_it_ends(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    session = journal.begin("loop", LOOP)
    journal.end(session.session_id, "stopped", "interrupted")
    with held(journal, session):
        assert (journal.sessions()[0].status, journal.sessions()[0].note) == ("running", "")
    assert journal.sessions()[0].status == "done"
    journal.close()


def test_steps_on_another_card_calibrate_nothing(tmp_path: Path) -> None:
    """Where the driver named the cards; a device that the user describes cannot be told from them."""
    config = EngineConfig(engine="vllm", model="m")
    journal = stored(tmp_path, config, "NVIDIA H200")
    here = device_catalogue()["h200"]
    assert len(calibrating_runs(journal, ["r1"], [config], here)) == 1
    assert len(calibrating_runs(journal, ["r1"], [config], msgspec.structs.replace(here, name="ours"))) == 1
    with pytest.raises(RequestError, match=r"holds no run on this device \(seen: NVIDIA H200\)"):
        calibrating_runs(journal, ["r1"], [config], device_catalogue()["h100-80gb"])
    with pytest.raises(RequestError, match="seen: NVIDIA Unheard Of"):
        calibrating_runs(stored(tmp_path / "odd", config, "NVIDIA Unheard Of"), ["r1"], [config], here)
    assert len(calibrating_runs(stored(tmp_path / "old", config), ["r1"], [config], here)) == 1


def test_a_run_named_twice_counts_once_and_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = stored(tmp_path, FAKE)
    session = journal.sessions()[0].session_id
    assert len(calibrating_runs(journal, ["r1", session, "r1"], [FAKE], None)) == 1
    write_run(tmp_path / "runs" / "r2", msgspec.structs.replace(make_run(), run_id="r2", config=FAKE))
    code, _, err = said(capsys, "verify", "r1,r2", "r2", "--home", tmp_path)
    assert code == 2
    assert "r2 is on both sides" in err
    code, out, _ = said(capsys, "verify", "r1,r1,r*1", "r2", "--json", "--home", tmp_path)
    assert code == 1
    assert "one run a side" in json.loads(out)["reason"]


def stored(home: Path, config: EngineConfig, card: str = "") -> Journal:
    """A journal with one run."""
    journal = Journal(home)
    samples = (DeviceSample(t_ns=1, index=0, name=card),) if card else ()
    run = msgspec.structs.replace(make_run(), config=config, device_samples=samples)
    session = journal.begin("load", "powerband load")
    journal.add_trial(session.session_id, "load", make_trial(1), run)
    return journal


def test_simulate_refuses_steps_of_another_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path)
    session = journal.begin("tune", LOOP)
    journal.add_trial(session.session_id, "baseline", make_trial(1), make_run())
    journal.close()
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "intermediate_size": 128, **shape}
    (tmp_path / "config.json").write_text(json.dumps(config))
    traffic = "in=2,out=2,concurrency=1"
    asked = ["--device", "h200", "--traffic", traffic, "--requests", "2", "--home", str(tmp_path)]
    code, _, err = said(capsys, "simulate", tmp_path, "--engine", "vllm", *asked, "--calibrate", "r1")
    assert code == 2
    assert "no run of this engine (seen: fake)" in err
