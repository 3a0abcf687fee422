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


def trial(stand: Stand, maker: Any, slots: int, name: str) -> str:
    running, started_for = stand.take(maker, config(slots), Path())
    stand.give_back(running, config(slots), started_for or name)
    return started_for


@pytest.mark.parametrize(("forgets", "starts"), [(True, 3), (False, 5)])
def test_equal_neighbours_share_a_start(forgets: bool, starts: int) -> None:
    maker, stand = Maker(forgets), Stand()
    for number, slots in enumerate((1, 2, 2, 1, 1)):
        trial(stand, maker, slots, f"run {number}")
    assert len(maker.made) == starts
    stand.close()
    stand.close()
    assert not any(server.up for server in maker.made)


def test_a_shared_run_says_whose_engine_it_used() -> None:
    maker, stand = Maker(), Stand()
    assert [trial(stand, maker, 1, name) for name in ("a", "b", "c")] == ["", "a", "a"]


def test_a_kept_engine_that_died_is_not_used() -> None:
    maker, stand = Maker(), Stand()
    trial(stand, maker, 1, "a")
    maker.made[0].up = False
    assert trial(stand, maker, 1, "b") == ""
    assert len(maker.made) == 2


def test_another_engine_starts_when_the_kept_one_has_stopped() -> None:
    first, second, stand = Maker(), Maker(), Stand()
    trial(stand, first, 1, "a")
    other = EngineConfig(engine="other", model="m", knobs={"slots": 1})
    running, started_for = stand.take(second, other, Path())  # type: ignore[arg-type]  # what a stand uses of an engine
    assert (started_for, first.made[0].up) == ("", False)
    assert running is second.made[0]  # type: ignore[comparison-overlap]
