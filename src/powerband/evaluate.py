"""Trials of one session: each is measured at most once, committed when it finishes, and paid from the budget."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from powerband.engines.base import Engine, get_engine
from powerband.measure import OnProgress, measure
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError, MachineError, RequestError
from powerband.records.run import Predicted, Purpose, Run, Trial, TrialStatus
from powerband.records.slo import Slo
from powerband.records.workload import Workload
from powerband.stand import Stand
from powerband.stores.base import Store

_SAME_CHARS = 60  # of the end of a line, by which it is known again behind another prefix
_RETRIES = 1  # of a trial that somebody else's work spoilt: such an episode is usually over by the next one


class Watcher(Protocol):
    """Is told when a trial starts and when it has ended."""

    def started(self, key: str, config: EngineConfig) -> OnProgress: ...

    def finished(self, key: str, trial: Trial) -> None: ...


# Measures a trial by its run id and the folder of its evidence, on an engine of its own or on one that is up.
Measure = Callable[[str, Path, OnProgress | None], Run]


def _at_once() -> None:
    """Nothing is needed before a trial begins."""


class Trials:
    """Evaluates configs for a session.

    A trial whose key the journal holds already is recalled, not run again: a session that was killed goes on by making
    the same calls, and repeats at most the trial it was in. ``engine_seconds`` is what all its trials cost so far. A
    config of another engine than ``engine`` is measured on that one. A config that the machine cannot run, or a request
    that is wrong from the first, ends the session; with ``tolerant`` it is a failed trial, as an engine's failure is.
    """

    def __init__(
        self,
        store: Store,
        session_id: str,
        engine: Engine,
        *,
        slo: Slo | None,
        budget_s: float,
        command: str,
        watcher: Watcher | None = None,
        tolerant: bool = False,
    ) -> None:
        self.session_id = session_id
        self._store, self._engine = store, engine
        self._slo, self.command, self._watcher = slo, command, watcher
        self.budget_s, self._tolerant = budget_s, tolerant
        self._stand = Stand()
        self.trials: list[Trial] = store.trials(session_id)
        self.met: list[Trial] = []  # those that this call has recalled or measured, in order

    @property
    def engine_seconds(self) -> float:
        return sum(trial.engine_seconds for trial in self.trials)

    @property
    def left_s(self) -> float:
        """Of the budget, after the trials met so far: a resumed session decides by what was known at each point."""
        return self.budget_s - sum(trial.engine_seconds for trial in self.met)

    def run(
        self,
        key: str,
        config: EngineConfig,
        workload: Workload,
        purpose: Purpose,
        *,
        cut_s: float,
        predicted: Predicted | None = None,
        by: Measure | None = None,
        before: Callable[[], None] = _at_once,
    ) -> tuple[Trial, Run | None]:
        """The trial called ``key``: recalled, or measured now; a spoilt one is repeated once under its own key.

        Where spoilt trials are the last that a session has, nothing was decided upon them: they are repeated anew.
        ``by`` measures it where no engine is to be started for it; ``before`` is called when it is about to begin, and
        what it raises leaves no trial.
        """
        planned = _Planned(
            config=config, workload=workload, purpose=purpose, cut_s=cut_s, predicted=predicted, by=by, before=before
        )
        fresh = attempt = 0
        while True:
            recalled = self._recall(_name(key, attempt))
            trial, run = recalled or self._measure(_name(key, attempt), planned)
            fresh += recalled is None
            attempt += 1
            if trial.status != "contended" or fresh > _RETRIES:
                return trial, run
            decided = trial.n < len(self.trials) and self._store.trial(self.session_id, _name(key, attempt)) is None
            if decided and attempt > _RETRIES:
                return trial, run

    def recalled(self, key: str) -> Trial | None:
        """The trial called ``key`` as the journal has it."""
        return self._store.trial(self.session_id, key)

    def evidence(self, trial: Trial) -> Run:
        """The raw run behind a trial that has one."""
        if trial.run_id is None:
            raise RequestError(f"trial {trial.n} left no run: {trial.cause}", hint="only measured trials have one")
        return self._store.run(trial.run_id)

    def skip(self, key: str, config: EngineConfig, cause: str) -> None:
        """Record a config that was pruned and why, so that the journal tells what was not tried."""
        if self._store.trial(self.session_id, key) is None:
            trial = Trial(n=len(self.trials) + 1, purpose="tune", config=config, status="pruned", cause=cause)
            self._commit(key, trial, None)

    def close(self) -> None:
        """Stop an engine that was kept for the next trial."""
        self._stand.close()

    def _engine_of(self, config: EngineConfig) -> Engine:
        return self._engine if config.engine == self._engine.name else get_engine(config.engine)

    def _is_fatal(self, error: MachineError | RequestError) -> bool:
        """Not an engine's failure, nor a request that was right once: what is wrong with it now is this config's."""
        if isinstance(error, RequestError):
            return not any(trial.status == "done" for trial in self.trials)
        return not isinstance(error, EngineError)

    def _recall(self, key: str) -> tuple[Trial, Run | None] | None:
        trial = self._store.trial(self.session_id, key)
        if trial is None:
            return None
        self.met.append(trial)
        return trial, self._store.run(trial.run_id) if trial.run_id else None

    def _measure(self, key: str, planned: "_Planned") -> tuple[Trial, Run | None]:
        run_id = f"{self.session_id}.{key}"
        planned.before()
        on_progress = self._watcher.started(key, planned.config) if self._watcher else None
        began = time.monotonic()
        run, cause = None, None
        status: TrialStatus = "done"
        try:
            run = self._run(run_id, planned, on_progress)
            status, cause = judge(run)
        except (MachineError, RequestError) as error:
            if not self._tolerant and self._is_fatal(error):
                raise
            status, cause = "failed", _cause_of(error)
        trial = Trial(
            n=len(self.trials) + 1,
            purpose=planned.purpose,
            config=planned.config,
            status=status,
            predicted=planned.predicted,
            measured=run.metrics(self._slo) if run else None,
            run_id=run_id if run else None,
            cause=cause,
            engine_seconds=time.monotonic() - began,
            startup_s=run.startup_s if run else 0.0,
        )
        self._commit(key, trial, run)
        return trial, run

    def _run(self, run_id: str, planned: "_Planned", on_progress: OnProgress | None) -> Run:
        folder = self._store.run_folder(run_id)
        if planned.by is not None:
            return planned.by(run_id, folder, on_progress)
        return measure(
            self._engine_of(planned.config),
            planned.config,
            planned.workload,
            run_id=run_id,
            folder=folder,
            command=self.command,
            cut_s=planned.cut_s,
            on_progress=on_progress,
            stand=self._stand,
        )

    def _commit(self, key: str, trial: Trial, run: Run | None) -> None:
        self._store.add_trial(self.session_id, key, trial, run)
        self.trials.append(trial)
        self.met.append(trial)
        if self._watcher and trial.status != "pruned":
            self._watcher.finished(key, trial)


def _name(key: str, attempt: int) -> str:
    return f"{key}-again{attempt if attempt > 1 else ''}" if attempt else key


@dataclass(frozen=True, slots=True)
class _Planned:
    """One trial before it is run."""

    config: EngineConfig
    workload: Workload
    purpose: Purpose
    cut_s: float
    predicted: Predicted | None
    by: Measure | None
    before: Callable[[], None]


def _cause_of(error: MachineError | RequestError) -> str:
    """What happened, and the log's last line where the message does not hold it and it is no routine."""
    if not isinstance(error, EngineError):
        return "; ".join(filter(None, [error.message, error.hint]))
    last = error.log_tail[-1:]
    new = (line for line in last if line[-_SAME_CHARS:] not in error.message and " INFO " not in line)
    return "; ".join([error.message, *new])


def judge(run: Run) -> tuple[TrialStatus, str | None]:
    """Whether a measured run may be used: not where the client was the limit or others took the cores."""
    if run.unfit is not None:
        return run.unfit
    if not any(trace.status == "ok" for trace in run.traces):
        first = next((trace.error for trace in run.traces if trace.error), "no answer before the deadline")
        return "failed", f"no request completed: {first}"
    return "done", None
