"""How simulated configs look on a terminal: the best of them first, then each with its figures."""

from typing import Any

from powerband.cli.simulate_answers import name_of
from powerband.cli.simulate_space import to_be_gated
from powerband.records.config import EngineConfig
from powerband.records.units import format_duration, percent
from powerband.records.value import Missing

_LONG_S = 10.0  # from here on a latency is written in seconds
_SHOWN = ("output_tokens_per_s", "goodput_per_s", "attainment", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


def draw_answer(more: dict[str, Any], found: list[Any]) -> list[str]:
    """The best of a sweep with its figures; where none may be best, what comes nearest to the promise."""
    if "best" not in more:
        return []
    best, count = _place(found, more["best_engine"], more["best"]), len(found)
    ran = [place for place, one in enumerate(found) if one.metrics is not None]
    if best is not None:
        lines = [f"best of {count}: {_summary(best, more, found)}"]
    elif not ran:
        lines = [f"none of {count} can serve this traffic"]
    elif found[ran[0]].holds is None:
        lines = [f"none of {count} is best: what runs alters the answers"]
    elif any(found[place].holds for place in ran):
        lines = [f"none of {count} keeps the promise without altering the answers"]
    else:
        nearest = max(ran, key=lambda place: found[place].metrics.attainment)
        lines = [f"none of {count} keeps the promise; nearest: {_summary(nearest, more, found)}"]
    if hope := more.get("best_if_gated"):
        place = _place(found, hope["engine"], hope["knobs"])
        assert place is not None
        lines.append(f"better, if it passes the gate (verify --quality): {_summary(place, more, found)}")
    return lines


def _place(found: list[Any], engine: str | None, knobs: dict[str, Any] | None) -> int | None:
    asked = (engine, knobs)
    return next((place for place, one in enumerate(found) if (one.config.engine, one.config.knobs) == asked), None)


def _summary(place: int, more: dict[str, Any], found: list[Any]) -> str:
    """``max_num_seqs=64; 795 output tokens/s, attainment 100.0 %, TTFT p50 35 ms, p99 52 ms``."""
    one = found[place]
    metrics = one.metrics
    parts = [f"{_number(metrics.output_tokens_per_s)} output tokens/s"]
    parts += [] if metrics.attainment is None else [f"attainment {percent(metrics.attainment, 1)}"]
    for name, seen in (("TTFT", metrics.ttft_s), ("TPOT", metrics.tpot_s)):
        if not isinstance(seen, Missing):
            parts.append(f"{name} p50 {format_duration(seen.p50)}, p99 {format_duration(seen.p99)}")
    costs, cards = (more.get(name, {place: None})[place] for name in ("costs", "cards"))
    parts += [] if costs is None else [f"{costs:.4g} for a million output tokens"]
    parts += [] if cards is None else [f"cards that keep the promise: {cards}"]
    kept = _kept(one) if one.holds and cards is None else ""
    return f"{name_of(one.config, found)}; {', '.join(parts)}{kept}"


def _kept(one: Any) -> str:
    if one.holds is None:
        return ""
    sure = "" if one.surely else ", but not at both ends of the interval"
    return f"; the promise {'holds' if one.holds else 'does not hold'}{sure}"


def frontier(found: list[Any]) -> list[EngineConfig]:
    from powerband.tune.pareto import Point, pareto_front

    points = [
        Point(config=one.config, throughput=one.metrics.output_tokens_per_s, latency_s=one.metrics.tpot_s.p50)
        for one in found
        if one.metrics is not None and not isinstance(one.metrics.tpot_s, Missing)
    ]
    return [point.config for point in pareto_front(points)]


def draw_found(found: list[Any], step_basis: str) -> list[str]:
    """A column per figure, a row per config; * marks the frontier of throughput against TPOT."""
    front = {config.key for config in frontier(found)} if len(found) > 1 else set()
    source = "the datasheet, not calibrated" if step_basis == "computed" else f"{step_basis} runs"
    lines = [f"simulated; step time from {source}; brackets: its 90 % interval"]
    for one in found:
        lines.append(f"{'* ' if one.config.key in front else '  '}{name_of(one.config, found)}")
        if one.refused:
            lines.append(f"    {one.refused}")
            continue
        for figure in _SHOWN:
            if figure in one.intervals:
                lines.append(f"    {_figure(figure, one)}")
        lines += [f"    {kept.removeprefix('; ')}"] if (kept := _kept(one)) else []
        lines += [f"    {one.shortfall}"] if one.shortfall else []
        lines += [f"    {note}" for note in one.notes]
        if unproved := to_be_gated(one.config):
            lines.append(f"    to be gated: {', '.join(unproved)} alters the answers")
    if front:
        lines.append("* no other config of the sweep has both more output tokens/s and a lower median TPOT")
    return lines


def _figure(name: str, one: Any) -> str:
    from powerband.simulate.what_if import figures_of

    value, interval = figures_of(one.metrics)[name], one.intervals[name]
    if name == "attainment":
        shown, low, high = (percent(figure, 1) for figure in (value, interval.low, interval.high))
        return f"{name:<20} {shown:>11}   [{low}, {high}]"
    if name.endswith("_per_s"):
        unit, factor = "  ", 1.0
    else:
        unit, factor = (" s", 1.0) if value >= _LONG_S else ("ms", 1e3)
    shown, low, high = (_number(figure * factor) for figure in (value, interval.low, interval.high))
    return f"{name.removesuffix('_s') if unit.strip() else name:<20} {shown:>10} {unit} [{low}, {high}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
