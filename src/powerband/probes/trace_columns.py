"""Events of one category as columns, a block at a time: no Python object stays for an event that has passed."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerband.probes.trace_events import Event
from powerband.records.timeline import Ints, Spans

_MAX_NAMES, _NAME_LENGTH = 200_000, 160
_OTHER = "(other names)"
# In ns this still fits 64 bits, with room for the length.
_MAX_US = 4e15
_NO_IDS = np.zeros(0, dtype=np.int64)


def whole_number(value: Any) -> int:
    """A correlation id, or -1 where there is none that fits."""
    return value if type(value) is int and 0 <= value < 1 << 62 else -1


class Index:
    """Values as small numbers, bounded in number and length of text."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        try:
            found = self.known.get(value)
        except TypeError:  # a list or an object where a name should be
            return self._add(str(value)[:_NAME_LENGTH])
        return found if found is not None else self._add(value)

    def of_all(self, values: list[Any]) -> Ints:
        """One number a value; nearly all are known already, so those are looked up without a call each."""
        try:
            numbers = [*map(self.known.get, values)]
        except TypeError:
            numbers = [None] * len(values)
        if None in numbers:
            numbers = [
                self.of(value) if number is None else number for value, number in zip(values, numbers, strict=True)
            ]
        return np.array(numbers, dtype=np.int64)

    def _add(self, value: Any) -> int:
        if isinstance(value, str) and len(value) > _NAME_LENGTH:
            value = value[:_NAME_LENGTH]
        if value not in self.known and len(self.known) >= _MAX_NAMES:
            value = _OTHER
        return self.known.setdefault(value, len(self.known))

    def texts(self, write: Callable[[Any], str] = str) -> tuple[str, ...]:
        return tuple(write(value) for value in self.known)


def thread_name(key: Any) -> str:
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


@dataclass(slots=True)
class Columns:
    """Intervals in ns with thread, name and one more number each, gathered in pieces."""

    pieces: list[tuple[Ints, Ints, Ints, Ints, Ints]] = field(default_factory=list)

    def add(self, start: Ints, end: Ints, thread: Ints, name: Ints, extra: Ints) -> None:
        if start.size:
            self.pieces.append((start, end, thread, name, extra))

    @property
    def empty(self) -> bool:
        return not self.pieces

    def table(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The columns sorted by start; the pieces are given up."""
        if not self.pieces:
            return _NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS
        waiting = [list(column) for column in zip(*self.pieces, strict=True)]
        self.pieces.clear()
        columns: list[Ints] = []
        for pieces in waiting:  # a column at a time, so that no more than one stands twice in memory
            columns.append(np.concatenate(pieces))
            pieces.clear()
        order = np.argsort(columns[0], kind="stable")
        for k in range(len(columns)):
            columns[k] = columns[k][order]
        start, end, thread, name, extra = columns
        return start, end, thread, name, extra

    def spans(self, zero_ns: int) -> Spans:
        start, end, thread, name, _ = self.table()
        return Spans(start - zero_ns, end - zero_ns, thread, name)


def read_times(events: Sequence[Event], odd: Counter[str]) -> tuple[Ints, Ints, NDArray[np.intp]]:
    """Start and end in ns of the events that have a time, and which these are; the rest is counted in ``odd``."""
    lengths = [event.dur for event in events]
    start_us, length_us = _numbers([event.ts for event in events]), _numbers(lengths)
    if None in lengths:
        length_us[np.array([length is None for length in lengths], dtype=bool)] = 0.0  # no length: an instant
    unreadable = np.isnan(start_us) | np.isnan(length_us)
    with np.errstate(invalid="ignore"):
        outside = ~unreadable & ((np.abs(start_us) > _MAX_US) | (length_us > _MAX_US) | ~np.isfinite(length_us))
        negative = ~unreadable & ~outside & (length_us < 0)
    for what, mask in (
        ("without a readable time", unreadable),
        ("with a time that is out of range", outside),
        ("with a negative duration", negative),
    ):
        if mask.any():
            odd[what] += int(mask.sum())
    kept = np.flatnonzero(~(unreadable | outside | negative))
    start, length = start_us[kept], length_us[kept]
    return np.rint(start * 1000).astype(np.int64), np.rint((start + length) * 1000).astype(np.int64), kept


def _numbers(values: list[Any]) -> NDArray[np.float64]:
    """Floats, nan where there is none; one wrong value must not spoil its block."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
