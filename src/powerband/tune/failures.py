"""Hidden constraints: configs that died make those that share what was new in them less likely to live."""

from collections.abc import Sequence

from powerband.records.config import EngineConfig, Knob, Value

BLAME = 0.8  # shared by the values that a dead config had and no living one


def survival(
    config: EngineConfig, lived: Sequence[EngineConfig], died: Sequence[EngineConfig], knobs: Sequence[Knob]
) -> float:
    """Probability that ``config`` starts and serves, 1 where nothing speaks against it.

    A value that once lived is innocent. Of a dead config the other values share the blame; on an ordered grid, values
    further away from what lived inherit it (if 16 slots died, 32 will).
    """
    chance = 1.0
    for dead in died:
        suspects = {
            name: value for name, value in dead.knobs.items() if not any(c.knobs.get(name) == value for c in lived)
        }
        if not suspects:  # every value lived elsewhere: only this very mixture is suspect
            chance *= 0.1 if config.key == dead.key else 1.0
            continue
        grids = {knob.name: knob.grid for knob in knobs}
        shared = sum(
            _reaches(config.knobs.get(name), value, [c.knobs.get(name) for c in lived], grids.get(name, ()))
            for name, value in suspects.items()
        )
        chance *= 1.0 - BLAME * shared / len(suspects)
    return chance


def _reaches(mine: Value | None, dead: Value, lived: list[Value | None], grid: tuple[Value, ...]) -> bool:
    """Whether my value is the dead one or lies beyond it, seen from the values that lived."""
    if mine == dead:
        return True
    if mine not in grid or dead not in grid or mine in lived:
        return False
    places = [grid.index(value) for value in lived if value is not None and value in grid]
    if not places:
        return False
    at, there = grid.index(mine), grid.index(dead)
    return (there > max(places) and at > there) or (there < min(places) and at < there)
