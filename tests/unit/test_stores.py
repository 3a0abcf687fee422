"""The journal: what is written comes back, half-written runs do not count, damage is said in one line."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.request import RequestTrace
from powerband.records.run import Run, Trial
from powerband.records.sample import DeviceSample, EngineSample
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.run_dir import read_run, write_run
from powerband.stores.sqlite import Journal

CONFIG = EngineConfig(engine="fake", model="m", knobs={"slots": 1})


def make_run(run_id: str = "r1") -> Run:
    trace = RequestTrace(
        index=0,
        status="ok",
        input_tokens=3,
        output_tokens_asked=2,
        t_sched_ns=0,
        t_send_ns=5,
        t_end_ns=99,
        t_chunks_ns=(40, 99),
        chunk_tokens=(1, 1),
    )
    return Run(
        run_id=run_id,
        basis="measured",
        config=CONFIG,
        effective=Missing(missing="not asked"),
        workload=Workload(requests=(RequestSpec(offset_ns=0, input_tokens=3, output_tokens=2),), source="by hand"),
        traces=(trace,),
        end_ns=100,
        engine_samples=(EngineSample(t_ns=50, running=1.0),),
    )


def make_trial(n: int, run_id: str | None = "r1") -> Trial:
    return Trial(n=n, purpose="tune", config=CONFIG, status="done", run_id=run_id)


def test_a_run_comes_back_equal(tmp_path: Path) -> None:
    write_run(tmp_path / "r1", make_run())
    assert read_run(tmp_path / "r1") == make_run()


def test_readings_of_devices_come_back_and_runs_of_before_have_none(tmp_path: Path) -> None:
    seen = DeviceSample(t_ns=1, index=0, name="H200", busy_ratio=0.5, throttle=("power brake",))
    run = msgspec.structs.replace(make_run(), device_samples=(seen,))
    write_run(tmp_path / "r1", run)
    assert read_run(tmp_path / "r1") == run
    write_run(tmp_path / "old", make_run())
    assert not (tmp_path / "old" / "device_samples.jsonl.gz").exists()
    assert read_run(tmp_path / "old").device_samples == ()


def test_a_finished_trial_is_there_for_the_next_process(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    session = first.begin("loop", "{}")
    first.add_trial(session.session_id, "baseline", make_trial(1), make_run())
    # no close(): the process is gone
    second = Journal(tmp_path)
    assert second.session(None).session_id == session.session_id
    assert second.trial(session.session_id, "baseline") == make_trial(1)
    assert second.trial(session.session_id, "tune-1") is None
    assert second.run("r1") == make_run()
    first.close()
    second.close()


def test_a_key_holds_one_trial(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    session = journal.begin("loop", "{}")
    journal.add_trial(session.session_id, "baseline", make_trial(1), None)
    with pytest.raises(sqlite3.IntegrityError):
        journal.add_trial(session.session_id, "baseline", make_trial(2), None)
    assert journal.trials(session.session_id) == [make_trial(1)]
    journal.close()


def test_sessions_of_one_second_get_their_own_names(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    names = {journal.begin("loop", "{}").session_id for _ in range(5)}
    assert len(names) == 5
    journal.close()


def test_commands_that_begin_at_once_in_a_new_home_share_its_journal(tmp_path: Path) -> None:
    for home in (tmp_path / str(n) for n in range(3)):
        with ThreadPoolExecutor(8) as pool:
            journals = list(pool.map(Journal, [home] * 8))
        assert len({journal.begin("load", "x").session_id for journal in journals}) == 8
        for journal in journals:
            journal.close()


def test_a_run_without_its_head_is_not_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "r1", make_run())
    (tmp_path / "r1" / "run.json").unlink()
    with pytest.raises(RequestError, match="no run in"):
        read_run(tmp_path / "r1")


@pytest.mark.parametrize("victim", ["run.json", "traces.jsonl.gz", "workload.jsonl.gz"])
def test_a_damaged_run_is_refused_in_one_line(tmp_path: Path, victim: str) -> None:
    write_run(tmp_path / "r1", make_run())
    whole = (tmp_path / "r1" / victim).read_bytes()
    (tmp_path / "r1" / victim).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RequestError, match="damaged"):
        read_run(tmp_path / "r1")


def test_an_unknown_run_lists_near_ids(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write_run(journal.run_folder("loop-1-baseline"), make_run("loop-1-baseline"))
    with pytest.raises(RequestError) as caught:
        journal.run("loop-1-baselin")
    assert "loop-1-baseline" in caught.value.hint
    journal.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_text("this is not a database, but it is long enough to be looked at " * 40)
    with pytest.raises(RequestError, match="not a journal"):
        Journal(tmp_path)


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    db = sqlite3.connect(tmp_path / "journal.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RequestError, match="newer"):
        Journal(tmp_path)


def test_documents_are_replaced_by_name(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    session = journal.begin("loop", "{}")
    journal.put_document(session.session_id, "report", b"1")
    journal.put_document(session.session_id, "report", msgspec.json.encode({"a": 2}))
    assert journal.document(session.session_id, "report") == b'{"a":2}'
    assert journal.document(session.session_id, "other") is None
    journal.close()
