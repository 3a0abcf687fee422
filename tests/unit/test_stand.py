"""An engine is shared by two trials only where the settings are equal and it could forget."""

from pathlib import Path
from typing import Any

import pytest

from powerband.records.config import EngineConfig
from powerband.stand import Stand


class Server:
    def __init__(self, forgets: bool) -> None:
        self.forgets, self.up = forgets, True

    def alive(self) -> bool:
        return self.up

    def forget(self) -> bool:
        return self.forgets

    def stop(self) -> None:
        self.up = False


class Maker:
    def __init__(self, forgets: bool = True) -> None:
        self.made: list[Server] = []
        self.forgets = forgets

    def start(self, config: EngineConfig, log_dir: Path) -> Any:
        self.made.append(Server(self.forgets))
        return self.made[-1]


def config(slots: int) -> EngineConfig:
    return EngineConfig(engine="fake", model="m", knobs={"slots": slots})


def trial(stand: Stand, slots: int, name: str) -> str:
    running, started_for = stand.take(config(slots), Path())
    stand.give_back(running, config(slots), started_for or name)
    return started_for


@pytest.mark.parametrize(("forgets", "starts"), [(True, 3), (False, 5)])
def test_equal_neighbours_share_a_start(forgets: bool, starts: int) -> None:
    maker = Maker(forgets)
    stand = Stand(maker)  # type: ignore[arg-type]  # only what a stand uses of an engine
    for number, slots in enumerate((1, 2, 2, 1, 1)):
        trial(stand, slots, f"run {number}")
    assert len(maker.made) == starts
    stand.close()
    stand.close()
    assert not any(server.up for server in maker.made)


def test_a_shared_run_says_whose_engine_it_used() -> None:
    stand = Stand(Maker())  # type: ignore[arg-type]
    assert [trial(stand, 1, name) for name in ("a", "b", "c")] == ["", "a", "a"]


def test_a_kept_engine_that_died_is_not_used() -> None:
    maker = Maker()
    stand = Stand(maker)  # type: ignore[arg-type]
    trial(stand, 1, "a")
    maker.made[0].up = False
    assert trial(stand, 1, "b") == ""
    assert len(maker.made) == 2
