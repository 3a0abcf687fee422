"""Loads on one rung's engine: started when the first of them is not in the journal yet, stopped with the rung."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from powerband.engines.base import Engine, RunningEngine, get_engine
from powerband.evaluate import Watcher, judge
from powerband.measure import observe, target_of
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError, MachineError, RequestError
from powerband.records.run import Predicted, Run, Trial, TrialStatus
from powerband.records.workload import Workload
from powerband.stores.base import Store
from powerband.warm_up import in_flight, warm_up

SLACK_S = 8.0  # of a load beside its window: prompts, warm-up, the last samples
_LONGEST_START_S = 420.0
# What a start takes at most as a rule; a rung is not begun where the time left does not pay for it.
_START_S = {"vllm": 110.0, "sglang": 110.0, "tensorrt-llm": 110.0, "tgi": 90.0, "transformers": 45.0}


class OutOfTime(Exception):
    """The time of this call is used: what is finished is in the journal."""


class Clock:
    """The time that this call may take, from now on."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end_s - time.monotonic()

    def need(self, seconds: float) -> None:
        if self.left_s < seconds:
            raise OutOfTime


class Journaled:
    """Trials of one ladder in the store, under the keys of their rung and load."""

    def __init__(self, store: Store, session_id: str, command: str, watcher: Watcher | None) -> None:
        self.store, self.session_id, self.command, self.watcher = store, session_id, command, watcher
        self._count = len(store.trials(session_id))

    def recall(self, key: str) -> tuple[Trial, Run | None] | None:
        trial = self.store.trial(self.session_id, key)
        if trial is None:
            return None
        return trial, self.store.run(trial.run_id) if trial.run_id else None

    def commit(self, key: str, trial: Trial, run: Run | None) -> None:
        self.store.add_trial(self.session_id, key, trial, run)
        self._count += 1
        if self.watcher is not None:
            self.watcher.finished(key, trial)

    def next_n(self) -> int:
        return self._count + 1

    def run_id(self, key: str) -> str:
        return f"{self.session_id}.{key}"


class RungServer:
    """The engine of one rung, while its loads are measured."""

    def __init__(self, journal: Journaled, clock: Clock, name: str, config: EngineConfig) -> None:
        self._journal, self._clock, self._name, self.config = journal, clock, name, config
        self._engine: Engine = get_engine(config.engine)
        self._running: RunningEngine | None = None
        self._warm = 0  # requests in flight that it was warmed up to

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def is_up(self) -> bool:
        return self._running is not None

    @property
    def start_s(self) -> float:
        """What a start takes as a rule; 0 once it is up."""
        return 0.0 if self.is_up else _START_S.get(self.config.engine, 20.0)

    def load(
        self, key: str, workload: Workload, span_s: float, predicted: Predicted | None, *, likely_s: float
    ) -> tuple[Trial, Run | None]:
        """The load called ``key``: recalled, or measured now; one that others' work spoilt is repeated once.

        A failure of the engine is a failed trial. Raises OutOfTime where the time left does not pay for ``likely_s``.
        """
        trial, run = self._load(key, workload, span_s, predicted, likely_s)
        if trial.status == "contended":
            trial, run = self._load(f"{key}-again", workload, span_s, predicted, likely_s)
        return trial, run

    def _load(
        self, key: str, workload: Workload, span_s: float, predicted: Predicted | None, likely_s: float
    ) -> tuple[Trial, Run | None]:
        found = self._journal.recall(key)
        if found is not None:
            return found
        self._clock.need(self.start_s + likely_s + SLACK_S)
        began = time.monotonic()
        run, cause = None, None
        status: TrialStatus = "done"
        try:
            run = self._measure(key, workload, span_s)
            status, cause = judge(run)
        except (EngineError, MachineError, RequestError) as error:
            tail = error.log_tail[-1:] if isinstance(error, EngineError) else (error.hint,)
            status, cause = "failed", "; ".join(filter(None, [error.message, *tail]))
            self._stop()
        trial = Trial(
            n=self._journal.next_n(),
            purpose="tune",
            config=self.config,
            status=status,
            predicted=predicted,
            measured=run.metrics() if run else None,
            run_id=run.run_id if run else None,
            cause=cause,
            engine_seconds=time.monotonic() - began,
            startup_s=run.startup_s if run else 0.0,
        )
        self._journal.commit(key, trial, run)
        return trial, run

    def _measure(self, key: str, workload: Workload, span_s: float) -> Run:
        journal = self._journal
        on_progress = journal.watcher.started(key, self.config) if journal.watcher else None
        run_id = journal.run_id(key)
        folder = journal.store.run_folder(run_id)
        running = self._running or self._start(folder)
        target = target_of(self._engine, running)
        cold: tuple[str, ...] = ()
        if in_flight(workload) > self._warm:
            cold, self._warm = warm_up(running, target, workload), in_flight(workload)
        run = observe(
            running, target, self.config, workload, run_id=run_id, command=journal.command, cut_s=span_s,
            on_progress=on_progress,
        )  # fmt: skip
        return msgspec.structs.replace(run, notes=(*run.notes, *cold))

    def _start(self, folder: Path) -> RunningEngine:
        timeout_s = min(_LONGEST_START_S, max(self._clock.left_s, 30.0))
        self._running = running = self._engine.start(self.config, folder, timeout_s)
        return running

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running, self._warm = None, 0
