"""Trials of a session: the budget as it was at each point, and spoilt ones that are repeated."""

from pathlib import Path
from typing import Any

import pytest

from powerband import evaluate
from powerband.engines.base import get_engine
from powerband.evaluate import Trials
from powerband.records.config import EngineConfig
from powerband.records.errors import MachineError, RequestError
from powerband.records.run import Trial
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.sqlite import Journal

CONFIG = EngineConfig(engine="fake", model="m")
WORKLOAD = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=1, output_tokens=1),), source="test")


def trials(journal: Journal, session_id: str) -> Trials:
    return Trials(journal, session_id, get_engine("fake"), slo=None, budget_s=100.0, command="test")


class Measuring:
    """Stands for an engine: the statuses that the next trials end with; every trial costs 10 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *statuses: str) -> None:
        self.left, self.names = list(statuses), list[str]()
        monkeypatch.setattr(evaluate.Trials, "_measure", lambda made, key, planned: self._measure(made, key, planned))

    def _measure(self, made: Trials, key: str, planned: Any) -> tuple[Trial, None]:
        self.names.append(key)
        status: Any = self.left.pop(0)
        trial = Trial(n=len(made.trials) + 1, purpose="tune", config=CONFIG, status=status, engine_seconds=10.0)
        made._commit(key, trial, None)
        return trial, None


def test_a_resumed_session_has_the_budget_that_was_left_at_each_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Measuring(monkeypatch, "done", "done", "done")
    journal = Journal(tmp_path)
    session_id = journal.begin("tune", "{}").session_id
    first = trials(journal, session_id)
    seen = []
    for key in ("baseline", "tune-1", "verify-1"):
        seen.append(first.left_s)
        first.run(key, CONFIG, WORKLOAD, "tune", cut_s=1.0)
    assert [*seen, first.left_s] == [100.0, 90.0, 80.0, 70.0]

    again = trials(journal, session_id)
    told = []
    for key in ("baseline", "tune-1", "verify-1"):
        told.append(again.left_s)
        again.run(key, CONFIG, WORKLOAD, "tune", cut_s=1.0)
    assert [*told, again.left_s] == [*seen, first.left_s]
    assert again.engine_seconds == 30.0


def test_spoilt_trials_at_the_end_of_a_session_are_measured_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    session_id = journal.begin("tune", "{}").session_id
    spoilt = Measuring(monkeypatch, "contended", "contended")
    trial, _ = trials(journal, session_id).run("baseline", CONFIG, WORKLOAD, "baseline", cut_s=1.0)
    assert (trial.status, spoilt.names) == ("contended", ["baseline", "baseline-again"])

    quiet = Measuring(monkeypatch, "done", "done")
    made = trials(journal, session_id)
    trial, _ = made.run("baseline", CONFIG, WORKLOAD, "baseline", cut_s=1.0)
    assert (trial.status, quiet.names) == ("done", ["baseline-again2"])
    made.run("tune-1", CONFIG, WORKLOAD, "tune", cut_s=1.0)

    nothing = Measuring(monkeypatch)
    trial, _ = trials(journal, session_id).run("baseline", CONFIG, WORKLOAD, "baseline", cut_s=1.0)
    assert (trial.status, nothing.names) == ("done", [])


def test_spoilt_trials_that_others_followed_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    session_id = journal.begin("tune", "{}").session_id
    Measuring(monkeypatch, "contended", "contended", "done")
    made = trials(journal, session_id)
    made.run("tune-1", CONFIG, WORKLOAD, "tune", cut_s=1.0)
    made.run("tune-2", CONFIG, WORKLOAD, "tune", cut_s=1.0)
    nothing = Measuring(monkeypatch)
    trial, _ = trials(journal, session_id).run("tune-1", CONFIG, WORKLOAD, "tune", cut_s=1.0)
    assert (trial.status, nothing.names) == ("contended", [])


@pytest.mark.parametrize("error", [RequestError("no such knob", hint="name another"), MachineError("disk full")])
def test_where_it_is_tolerant_what_a_config_asks_in_vain_is_a_failed_trial(tmp_path: Path, error: Any) -> None:
    def fail(*_: object) -> Any:
        raise error

    journal = Journal(tmp_path)
    session_id = journal.begin("loop", "{}").session_id
    with pytest.raises(type(error)):
        trials(journal, session_id).run("baseline", CONFIG, WORKLOAD, "tune", cut_s=1.0, by=fail)
    assert journal.trials(session_id) == []
    made = Trials(journal, session_id, get_engine("fake"), slo=None, budget_s=1.0, command="test", tolerant=True)
    trial, run = made.run("rung-1", CONFIG, WORKLOAD, "tune", cut_s=1.0, by=fail)
    assert (trial.status, run) == ("failed", None)
    assert trial.cause == "; ".join(filter(None, [error.message, error.hint]))
    with pytest.raises(RuntimeError):  # out of time: nothing was begun
        made.run("rung-2", CONFIG, WORKLOAD, "tune", cut_s=1.0, by=fail, before=_out_of_time)
    assert made.recalled("rung-2") is None


def _out_of_time() -> None:
    raise RuntimeError
