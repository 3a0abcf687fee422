"""llama.cpp's slots: which one a request gets, and which of them one pass computes together.

With a cache part for each slot (``kv_unified`` off) the tokens of a step are split into passes of slots that are
neighbours (llama_kv_cache::init_batch, split_equal with sequential ids): four busy slots in a row cost one pass over
the weights, four scattered ones four.
"""

from collections.abc import Iterable, Sequence

WARM_UP = (1, 2, 1, 1, 1)  # requests at once, burst by burst, that warm_up.py sends to an engine on a CPU


class SlotTable:
    """Free slots by when they were last used. A request gets the one unused for longest; of equals the highest number
    (get_available_slot in the server; what it does for prompts that a slot knows already is left out)."""

    __slots__ = ("_count", "_free")

    def __init__(self, count: int, warmed: Sequence[int] = WARM_UP) -> None:
        """``warmed``: bursts that were served before, each of which ended together (a step's ends are released by
        their slots' numbers)."""
        self._free: dict[int, float] = dict.fromkeys(range(count), -1.0)
        self._count = 0  # of releases: their order is all that matters
        for burst in warmed:
            for first in range(0, burst, count):
                for slot in sorted(self.take() for _ in range(min(count, burst - first))):
                    self.release(slot)

    def take(self) -> int:
        """Raises ValueError where none is free."""
        slot = min(self._free, key=lambda slot: (self._free[slot], -slot))
        del self._free[slot]
        return slot

    def release(self, slot: int) -> None:
        self._count += 1
        self._free[slot] = float(self._count)

    @property
    def free(self) -> int:
        return len(self._free)


def neighbours(slots: Iterable[int]) -> tuple[int, ...]:
    """Lengths of the rows of slots next to each other, longest first: equal for what costs the same."""
    rows: list[int] = []
    before = -2
    for slot in sorted(slots):
        if slot == before + 1:
            rows[-1] += 1
        else:
            rows.append(1)
        before = slot
    return tuple(sorted(rows, reverse=True))
