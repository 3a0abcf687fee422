"""Events of one category as columns, a block at a time: no Python object stays for an event that has passed."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
_MAX_ID = 1 << 62
_NO_IDS = np.zeros(0, dtype=np.int64)


def correlations(values: list[Any]) -> Ints:
    """Correlation ids, -1 where there is none that fits."""
    try:
        ids = whole_numbers(values)
    except (TypeError, OverflowError):
        ids = whole_numbers([value if type(value) is int and 0 <= value < _MAX_ID else -1 for value in values])
    return np.where((ids >= 0) & (ids < _MAX_ID), ids, -1)


def whole_numbers(values: Sequence[Any]) -> Ints:
    """A column of them, several times as fast as by numpy; TypeError or OverflowError for any other value."""
    return np.array(array("q", values), dtype=np.int64)


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

    def of_all(self, *columns: Sequence[Any]) -> Ints:
        """One number a value, or a tuple of values of several columns; nearly all are known: no call for each."""

        def values() -> Iterator[Any]:
            return iter(columns[0]) if len(columns) == 1 else zip(*columns, strict=True)

        numbers: list[int | None] = [None] * len(columns[0])
        with suppress(TypeError):  # a list or an object where a name should be
            numbers = [*map(self.known.get, values())]
        with suppress(TypeError):  # some are new
            return whole_numbers(numbers)
        pairs = zip(values(), numbers, strict=True)
        return whole_numbers([self.of(value) if number is None else number for value, number in pairs])

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
    """Intervals in ns with thread, name and one or more numbers each, gathered in pieces."""

    pieces: list[tuple[Ints, ...]] = field(default_factory=list)

    def add(self, start: Ints, end: Ints, thread: Ints, name: Ints, *more: Ints) -> None:
        if start.size:
            self.pieces.append((start, end, thread, name, *more))

    @property
    def empty(self) -> bool:
        return not self.pieces

    def table(self) -> tuple[Ints, ...]:
        """The columns sorted by start; the pieces are given up."""
        if not self.pieces:
            return _NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS
        waiting = [list(column) for column in zip(*self.pieces, strict=True)]
        self.pieces.clear()
        columns: list[Ints] = []
        for pieces in waiting:  # a column at a time, so that no more than one stands twice in memory
            columns.append(np.concatenate(pieces))
            pieces.clear()
        if (columns[0][1:] < columns[0][:-1]).any():
            order = np.argsort(columns[0], kind="stable")
            for k in range(len(columns)):
                columns[k] = columns[k][order]
        return tuple(columns)

    def spans(self, zero_ns: int) -> Spans:
        start, end, thread, name = self.table()[:4]
        return Spans(start - zero_ns, end - zero_ns, thread, name)


def read_times(events: Sequence[Event], odd: Counter[str]) -> tuple[Ints, Ints, NDArray[np.intp]]:
    """Start and end in ns of the events that have a time, and which these are; the rest is counted in ``odd``."""
    lengths = [event.dur for event in events]
    start_us, length_us = _numbers([event.ts for event in events]), _numbers(lengths)
    if ((np.abs(start_us) <= _MAX_US) & (length_us >= 0) & (length_us <= _MAX_US)).all():
        return *_in_ns(start_us, length_us), np.arange(start_us.size)
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
    return *_in_ns(start_us[kept], length_us[kept]), kept


def _in_ns(start_us: NDArray[np.float64], length_us: NDArray[np.float64]) -> tuple[Ints, Ints]:
    return np.rint(start_us * 1000).astype(np.int64), np.rint((start_us + length_us) * 1000).astype(np.int64)


def _numbers(values: list[Any]) -> NDArray[np.float64]:
    """Floats, nan where there is none; one wrong value must not spoil its block."""
    try:
        return np.array(array("d", values), dtype=np.float64)
    except (TypeError, OverflowError):
        return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
