"""Choosing among splits: what fits, what keeps the promise, what does not drown in communication, what serves most."""

from collections.abc import Sequence

import msgspec

from powerband.records.objective import TIE
from powerband.records.parallel import Split
from powerband.records.rounds import Objective
from powerband.records.units import percent
from powerband.records.value import Record
from powerband.simulate.communication import LIMIT, interval_of

_UNITS: dict[Objective, str] = {"output_tokens_per_s": "output tokens/s", "goodput_per_s": "requests/s within the SLO"}


class Tried(Record):
    """A split with its objective: expected, and in each draw of the step time's doubt; none where it does not fit."""

    split: Split
    expected: float = 0.0
    drawn: tuple[float, ...] = ()

    @property
    def communication(self) -> float:
        return 0.0 if self.split.figures is None else self.split.figures.communication.run


def with_wins(tried: Sequence[Tried]) -> list[Tried]:
    """With the share of draws in which each split is the best, or as good as the best and of less TP."""
    fitting = [one for one in tried if one.drawn]
    wins = {one.split.name: 0 for one in fitting}
    draws = len(fitting[0].drawn) if fitting else 0
    for n in range(draws):
        top = max(one.drawn[n] for one in fitting)
        best = min((one for one in fitting if one.drawn[n] >= (1 - TIE) * top), key=lambda one: one.split.tensor)
        wins[best.split.name] += 1
    return [
        one
        if not one.drawn
        else msgspec.structs.replace(one, split=msgspec.structs.replace(one.split, wins=wins[one.split.name] / draws))
        for one in tried
    ]


def choose(tried: Sequence[Tried], objective: Objective) -> tuple[str | None, str]:
    """The split to take and why; None where none fits.

    Splits that keep the promise come before those that do not; then those at or below LIMIT of communication; then the
    most of the objective, and less TP where that ties.
    """
    fitting = [one for one in tried if one.split.figures is not None]
    if not fitting:
        return None, "no split fits: " + "; ".join(f"{one.split.name}: {one.split.shortage}" for one in tried)
    kept = [one for one in fitting if one.split.holds is not False] or fitting
    quiet = [one for one in kept if one.communication <= LIMIT] or kept
    top = max(one.expected for one in quiet)
    best = min((one for one in quiet if one.expected >= (1 - TIE) * top), key=lambda one: one.split.tensor)
    return best.split.name, "; ".join(_reasons(best, tried, fitting, objective))


def _reasons(best: Tried, tried: Sequence[Tried], fitting: Sequence[Tried], objective: Objective) -> list[str]:
    said = [_against(best, other, objective) for other in fitting if other is not best]
    said += [f"{one.split.name} does not fit: {one.split.shortage}" for one in tried if one.split.figures is None]
    if best.communication > LIMIT:
        said.insert(0, f"{percent(best.communication)} of its time is communication, and no split with less TP serves")
    if best.split.holds is False:
        said.insert(0, "no split keeps the promise; this one comes closest")
    return said or ["it is the only split"]


def _against(best: Tried, other: Tried, objective: Objective) -> str:
    """One comparison: the ratio of the objective with its interval, and the communication that explains it."""
    name, unit = other.split.name, _UNITS[objective]
    shared = f"{name} spends {percent(other.communication)} of its time in all-reduces"
    if other.communication > LIMIT:
        shared += f", above {percent(LIMIT)}"
    if other.split.holds is False and best.split.holds:
        return f"{name} does not keep the promise"
    if other.expected <= 0 or best.expected <= 0:
        return shared
    ratio = best.expected / other.expected
    if abs(ratio - 1) <= TIE:
        return f"as many {unit} as {name}" + (
            " with fewer cards a layer" if best.split.tensor < other.split.tensor else ""
        )
    pairs = [mine / theirs for mine, theirs in zip(best.drawn, other.drawn, strict=True) if theirs > 0]
    interval = interval_of(pairs) if pairs else None
    bounds = "" if interval is None else f" [{interval.low:.2f}, {interval.high:.2f}]"
    said = f"{ratio:.2f}x{bounds} the {unit} of {name}"
    return f"{said}; {shared}" if other.communication > best.communication else said


def proof(ranked: Sequence[Tried], chosen: str | None) -> str:
    """What to run so that the choice is shown or overturned."""
    rivals = [one.split for one in ranked if one.split.figures is not None and one.split.name != chosen]
    if chosen is None or not rivals:
        return "nothing to compare: no other split fits"
    tensor = max([one.tensor for one in rivals] + [1])
    mine = next(one.split for one in ranked if one.split.name == chosen)
    most = max(tensor, mine.tensor)
    return (
        f"measure {chosen} and {rivals[0].name} under this traffic; to measure the communication alone, journal one run"
        f" at TP {most} and one at TP 1 and give both with --calibrate, or a profiler trace of TP {most} with --trace"
    )
