"""Where trials get their engine from: a fresh start, or the last one where it runs the same settings and can forget."""

from pathlib import Path

from powerband.engines.base import Engine, RunningEngine
from powerband.records.config import EngineConfig


class Stand:
    """Keeps the engine of the last trial that ended well, where the engine can forget what it was sent.

    A start takes a minute or more on a GPU; two runs with equal settings one after the other then share it. What is
    kept stops before another config or another engine starts.
    """

    def __init__(self) -> None:
        self._kept: tuple[str, RunningEngine, str] | None = None  # config key, engine, run it was started for

    def take(self, engine: Engine, config: EngineConfig, folder: Path) -> tuple[RunningEngine, str]:
        """An engine with ``config``, and the run that it was started for ("" for this one)."""
        if self._kept is not None:
            key, running, started_for = self._kept
            if key == config.key and running.alive():
                self._kept = None
                return running, started_for
            self.close()
        return engine.start(config, folder), ""

    def give_back(self, running: RunningEngine, config: EngineConfig, started_for: str) -> None:
        """The run ended well: keep its engine if that can forget, else stop it."""
        if running.forget():
            self._kept = (config.key, running, started_for)
        else:
            running.stop()

    def close(self) -> None:
        """Stop what is kept; safe to call twice."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].stop()
