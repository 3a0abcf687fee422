"""Loads on one rung's engine: started when the first of them is not in the journal yet, stopped with the rung."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from powerband.engines.base import Engine, RunningEngine, get_engine
from powerband.evaluate import Trials
from powerband.measure import OnProgress, observe, target_of
from powerband.records.config import EngineConfig
from powerband.records.run import Predicted, Run, Trial
from powerband.records.workload import Workload
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


class RungServer:
    """The engine of one rung, while its loads are measured."""

    def __init__(self, trials: Trials, clock: Clock, config: EngineConfig) -> None:
        self._trials, self._clock, self.config = trials, clock, config
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

        def send(run_id: str, folder: Path, on_progress: OnProgress | None) -> Run:
            try:
                return self._send(workload, span_s, run_id, folder, on_progress)
            except BaseException:
                self._stop()
                raise

        return self._trials.run(
            key,
            self.config,
            workload,
            "tune",
            cut_s=span_s,
            predicted=predicted,
            by=send,
            before=lambda: self._clock.need(self.start_s + likely_s + SLACK_S),
        )

    def _send(
        self, workload: Workload, span_s: float, run_id: str, folder: Path, on_progress: OnProgress | None
    ) -> Run:
        running = self._running or self._start(folder)
        target = target_of(self._engine, running)
        cold: tuple[str, ...] = ()
        if in_flight(workload) > self._warm:
            cold, self._warm = warm_up(running, target, workload).notes, in_flight(workload)
        run = observe(
            running, target, self.config, workload, run_id=run_id, command=self._trials.command, cut_s=span_s,
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
