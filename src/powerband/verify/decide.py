"""From the rows of a comparison to keep, revert or undecided, with the reason in one sentence."""

from collections.abc import Sequence
from typing import Literal

from powerband.records.slo import Slo
from powerband.records.units import percent
from powerband.records.value import Missing
from powerband.records.verdict import Compared, QualityResult

Answer = Literal["keep", "revert", "undecided"]

# Without an SLO nothing says how latency and throughput trade, so a change must not pay one with the other.
_GUARDS = ("ttft_p50_s", "tpot_p50_s", "e2e_p50_s")
PER_CARD = "_per_card"  # ends the name of a row that tells the objective for each card that a side takes
_WORDS = {
    "goodput_per_s": ("goodput", " requests/s", 1.0),
    "goodput_per_s_per_card": ("goodput of a card", " requests/s", 1.0),
    "output_tokens_per_s_per_card": ("output of a card", " tokens/s", 1.0),
    "request_rate_per_s": ("completed", " requests/s", 1.0),
    "output_tokens_per_s": ("output", " tokens/s", 1.0),
    "total_tokens_per_s": ("input and output", " tokens/s", 1.0),
    "attainment": ("attainment", " %", 100.0),
}


def decide(
    rows: Sequence[Compared],
    slo: Slo | None,
    quality: QualityResult,
    repeats: int,
    excluded: int,
    floor: float | None,
    minimum_effect: float,
    *,
    mixed: bool,
) -> tuple[Answer, str]:
    """The verdict and its reason."""
    if quality.verdict == "failed":
        return "revert", f"the answers got worse: {quality.reason}"
    if mixed:
        return "undecided", "measured and simulated runs cannot be compared"
    if repeats == 0:
        gone = f": {excluded} left out as contended or client-limited" if excluded else ""
        return "undecided", f"one side has no usable run{gone}"
    objective = objective_row(rows, slo)
    if objective is None:
        return "undecided", f"neither side shows {_in_words(_objective_name(slo))[0]}"
    if floor is None and repeats < 2:
        return "undecided", f"one run a side shows no noise between runs ({describe(objective)}): repeat each"
    answer, reason = _by_objective(objective, rows, slo, floor, minimum_effect)
    if answer == "keep" and quality.verdict == "not_run":
        return "undecided", f"{reason}, but quality was not checked: {quality.reason}"
    if answer == "keep" and quality.verdict == "undecided":
        return "undecided", f"{reason}, but quality was not shown to hold: {quality.reason}"
    return answer, reason


def objective_row(rows: Sequence[Compared], slo: Slo | None) -> Compared | None:
    """The row that decides: the objective for each card where there is one, else the objective."""
    names = [f"{_objective_name(slo)}{PER_CARD}", _objective_name(slo)]
    return next((row for name in names for row in rows if row.name == name), None)


def _objective_name(slo: Slo | None) -> str:
    return "output_tokens_per_s" if slo is None else "goodput_per_s"


def _by_objective(
    objective: Compared, rows: Sequence[Compared], slo: Slo | None, floor: float | None, minimum_effect: float
) -> tuple[Answer, str]:
    seen = describe(objective)
    worse = [row for row in rows if row.verdict == "worse" and row.name in _guards(slo)]
    if objective.name.endswith(PER_CARD):  # cards are what counts, within the promise
        worse = [row for row in worse if slo is not None and row.after < slo.attainment]
    if objective.verdict == "worse":
        return "revert", f"{seen}: worse beyond noise"
    if objective.verdict == "better":
        if worse:
            promise = "set --slo to say which counts" if slo is None else "the promise is met less often"
            return "undecided", f"{seen}, but {describe(worse[0])}: {promise}"
        return "keep", f"{seen}: better beyond noise"
    if objective.verdict == "same":
        return _by_latency(seen, rows, minimum_effect)
    if objective.interval is not None and objective.interval.high < 1 + minimum_effect:
        return "revert", f"{seen}: at best less than the {percent(minimum_effect)} that a change must bring"
    why = "no noise floor" if floor is None else f"equal configs differ by {percent(floor, 1)} with as many repeats"
    return "undecided", f"{seen}: the interval holds both a gain and none ({why}); more repeats would tell"


def _guards(slo: Slo | None) -> tuple[str, ...]:
    return _GUARDS if slo is None else ("attainment",)


def _by_latency(seen: str, rows: Sequence[Compared], minimum_effect: float) -> tuple[Answer, str]:
    """At equal throughput (the traffic set it) a shorter request is a gain, if no part of it got longer."""
    e2e = next((row for row in rows if row.name == "e2e_p50_s"), None)
    worse = [row for row in rows if row.verdict == "worse"]
    if e2e is not None and e2e.verdict == "better" and not worse:
        return "keep", f"{seen}, the same; {describe(e2e)}: better beyond noise"
    if worse:
        return "revert", f"{seen}, the same; {describe(worse[0])}: worse beyond noise"
    return "revert", f"{seen}: no gain of {percent(minimum_effect)} or more"


def describe(row: Compared) -> str:
    """``goodput 2.1 -> 4.3 requests/s (2.05x, 1.9 to 2.2)``; times in milliseconds."""
    name, unit, scale = _in_words(row.name)
    change = f"{name} {row.before * scale:.4g} -> {row.after * scale:.4g}{unit}"
    if isinstance(row.ratio, Missing) or row.interval is None:
        return f"{change} ({row.ratio.missing.split(':')[0] if isinstance(row.ratio, Missing) else 'no interval'})"
    return f"{change} ({row.ratio:.3g}x, {row.interval.low:.3g} to {row.interval.high:.3g})"


def _in_words(name: str) -> tuple[str, str, float]:
    """What a metric is called, its unit, and the factor to it: ``ttft_p99_s`` is ``TTFT p99`` in ms."""
    if name in _WORDS:
        return _WORDS[name]
    parts = name.removesuffix("_s").split("_")
    return " ".join([parts[0].upper(), *parts[1:]]), " ms", 1000.0
