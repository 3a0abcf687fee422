"""Wait until the cards have the memory that an engine will ask for, and name who holds it where they do not."""

import time
from collections.abc import Callable

from powerband.probes.cards import Card, read_cards
from powerband.records.errors import EngineError
from powerband.records.units import format_bytes, percent

PATIENCE_S = 60.0  # a driver takes a moment to give back what a killed process held
_LOOK_S = 0.5


def wait_until_free(
    share: float,
    cards: int,
    *,
    visible: str | None = None,
    patience_s: float = PATIENCE_S,
    read: Callable[[str | None], tuple[Card, ...]] = read_cards,
) -> None:
    """Return when the first ``cards`` visible cards each have ``share`` of their memory free, or none is to be seen.

    Raises EngineError that names the processes which hold it, after ``patience_s``: nothing was started then.
    """
    until_s = time.monotonic() + patience_s
    while True:
        short = [card for card in read(visible)[:cards] if card.free_bytes < share * card.memory_bytes]
        if not short:
            return
        if time.monotonic() >= until_s:
            raise _held(short[0], share)
        time.sleep(min(_LOOK_S, max(0.0, until_s - time.monotonic())))


def _held(card: Card, share: float) -> EngineError:
    lines = tuple(
        f"pid {one.pid} ({one.name}) holds {format_bytes(one.bytes) if one.bytes else 'memory'}" for one in card.holders
    )
    who = "; ".join(lines) or "no process that can be seen from here"
    return EngineError(
        f"card {card.index} is not free: {format_bytes(card.free_bytes)} of {format_bytes(card.memory_bytes)}, and "
        f"{percent(share)} is asked for; {who}",
        hint="end what was left running, or ask for less with gpu_memory_utilization",
    )
