"""The settings by which ``--set`` may describe an engine that is reckoned with and not started."""

from powerband.account.knobs import MEMORY_KNOBS
from powerband.engines.base import BUILT_IN, get_engine
from powerband.records.config import Knob


def knobs_of(engine: str) -> tuple[Knob, ...]:
    """The adapter's own knobs where there is one, and those that only memory cares about."""
    own = get_engine(engine).knobs() if engine in BUILT_IN else ()
    names = {knob.name for knob in own}
    return (*own, *(knob for knob in MEMORY_KNOBS.get(engine, ()) if knob.name not in names))
