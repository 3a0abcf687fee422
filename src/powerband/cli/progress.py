"""What a person watching sees on stderr while trials run: one line a trial, and on a terminal how it goes meanwhile."""

import sys
import time

from powerband.load.target import Progress
from powerband.measure import OnProgress
from powerband.records.config import EngineConfig
from powerband.records.run import Trial
from powerband.records.units import format_duration, percent


class Narrator:
    """Says which trial runs, how far it is and what it gave; silent when ``quiet``."""

    def __init__(self, *, quiet: bool, budget_s: float | None = None, name_engine: bool = False) -> None:
        self._name_engine = name_engine
        self._quiet, self._live = quiet, sys.stderr.isatty() and not quiet
        self._budget_s, self._spent_s = budget_s, 0.0
        self._name, self._began = "", 0.0

    def say(self, line: str) -> None:
        if not self._quiet:
            sys.stderr.write(("\r\x1b[2K" if self._live else "") + line + "\n")
            sys.stderr.flush()

    def started(self, key: str, config: EngineConfig) -> OnProgress:
        """A trial starts; what is returned is called with its progress."""
        self._name, self._began = key, time.monotonic()
        settings = " ".join(f"{name}={value}" for name, value in sorted(config.knobs.items()))
        engine = f"{config.engine} " if self._name_engine else ""
        self.say(f"{key:<17} {engine}{settings}")
        return self.update

    def update(self, progress: Progress) -> None:
        if not self._live:
            return
        left = f", {format_duration(progress.left_s)} left" if progress.left_s is not None else ""
        ttft = f", ttft {format_duration(progress.ttft_s)}" if progress.ttft_s is not None else ""
        tpot = f", tpot {format_duration(progress.tpot_s)}" if progress.tpot_s is not None else ""
        errors = f", {progress.errors} errors" if progress.errors else ""
        text = (
            f"  {progress.completed}/{progress.planned} done, {progress.in_flight} in flight{ttft}{tpot}{errors}{left}"
        )
        sys.stderr.write("\r\x1b[2K" + text[:118])
        sys.stderr.flush()

    def finished(self, key: str, trial: Trial) -> None:
        """A trial ended: its figures on one line, and what is left of the budget."""
        self._spent_s += trial.engine_seconds
        left = (
            f"; {format_duration(max(self._budget_s - self._spent_s, 0.0))} of the budget left"
            if self._budget_s
            else ""
        )
        self.say(f"  {_outcome(trial)}{left}")


def _outcome(trial: Trial) -> str:
    if trial.measured is None or trial.status != "done":
        return f"{trial.status}: {trial.cause}"
    metrics = trial.measured
    good = "" if metrics.attainment is None else f", {percent(metrics.attainment)} within the SLO"
    return f"{metrics.output_tokens_per_s:.1f} output tokens/s, {metrics.completed}/{metrics.requests} done{good}"
