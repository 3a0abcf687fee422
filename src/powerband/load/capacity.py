"""The highest rate that keeps a promise: a bracket made by doubling, then narrowed by halves; it asks and is told."""

import math
from typing import Literal

from powerband.records.units import percent
from powerband.records.value import Interval, Record

_Z90 = 1.645
_MOST_REPEATS = 3
_WIDEST = 1 << 10  # times the first rate, either way


class Probe(Record):
    """One rate tried: how many requests met the promise, of how many, and what that says."""

    rate_per_s: float
    good: int
    requests: int
    interval: Interval  # of attainment
    verdict: Literal["holds", "misses", "undecided"]

    @property
    def attainment(self) -> float:
        return self.good / self.requests


class Capacity(Record):
    """``rate_per_s`` is where attainment crosses the target, between the highest rate that held and the lowest that
    missed; None where even the lowest rate tried missed, or the highest held."""

    rate_per_s: float | None
    interval: Interval | None
    probes: tuple[Probe, ...]
    reason: str


class CapacitySearch:
    """``ask`` for a rate, ``tell`` what came; a few probes until the bracket is narrower than ``tolerance``.

    Attainment is assumed to fall with the rate. A probe whose interval (Wilson, 90 %) holds the target is repeated up
    to three times and then taken by its share.
    """

    def __init__(
        self, first_rate_per_s: float, target: float, *, tolerance: float = 0.05, most_probes: int = 16
    ) -> None:
        self._first, self._target, self._tolerance, self._most = first_rate_per_s, target, tolerance, most_probes
        self._tried: dict[float, tuple[int, int, int]] = {}  # rate -> good, requests, probes
        self._probes: list[Probe] = []
        self._next = first_rate_per_s
        self._holds: float | None = None
        self._misses: float | None = None
        self._reason = ""

    def ask(self) -> float | None:
        """The next rate to try, or None when the search is over."""
        return None if self._reason else self._next

    def tell(self, rate_per_s: float, good: int, requests: int) -> Probe:
        """Say how many of ``requests`` sent at ``rate_per_s`` were good; what is known of that rate afterwards."""
        before = self._tried.get(rate_per_s, (0, 0, 0))
        good, requests, count = before[0] + good, before[1] + requests, before[2] + 1
        self._tried[rate_per_s] = (good, requests, count)
        low, high = wilson(good, requests)
        decided = not low < self._target < high or count >= _MOST_REPEATS
        holds = good / requests >= self._target
        verdict: Literal["holds", "misses", "undecided"] = ("holds" if holds else "misses") if decided else "undecided"
        probe = Probe(
            rate_per_s=rate_per_s, good=good, requests=requests, interval=Interval(low=low, high=high), verdict=verdict
        )
        self._probes.append(probe)
        if decided and holds:
            self._holds = max(rate_per_s, self._holds or 0.0)
        elif decided:
            self._misses = min(rate_per_s, self._misses or math.inf)
        self._plan(decided)
        return probe

    def _plan(self, decided: bool) -> None:
        if len(self._probes) >= self._most:
            self._reason = f"{self._most} probes made"
        elif not decided:
            return
        elif self._misses is None:
            self._next = (self._holds or self._first) * 2
            if self._next > self._first * _WIDEST:
                self._reason = "the promise holds at every rate tried"
        elif self._holds is None:
            self._next = self._misses / 2
            if self._next < self._first / _WIDEST:
                self._reason = "the promise is missed at every rate tried"
        elif self._misses / self._holds <= 1 + self._tolerance:
            self._reason = f"the bracket is within {percent(self._tolerance)}"
        else:
            self._next = math.sqrt(self._holds * self._misses)

    def result(self) -> Capacity:
        if self._holds is None or self._misses is None:
            return Capacity(rate_per_s=None, interval=None, probes=tuple(self._probes), reason=self._reason)
        low, high = self._holds, self._misses
        above, below = (self._tried[rate][0] / self._tried[rate][1] for rate in (low, high))
        share = (above - self._target) / (above - below) if above > below else 0.5
        return Capacity(
            rate_per_s=low * (high / low) ** min(1.0, max(0.0, share)),
            interval=Interval(low=low, high=high),
            probes=tuple(self._probes),
            reason=self._reason or "stopped before the bracket was narrow",
        )


def wilson(good: int, count: int) -> tuple[float, float]:
    """Bounds of a share at 90 % (Wilson's score interval), sound also where every request was good."""
    share, square = good / count, _Z90**2 / count
    middle = (share + square / 2) / (1 + square)
    half = _Z90 / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)
