"""Naive against chosen: each metric before and after, with the ratio and its interval."""

import math
from collections.abc import Sequence

from powerband.records.rounds import LoopReport
from powerband.records.run import Trial
from powerband.records.value import Interval, Measured, Missing, known
from powerband.records.verdict import Compared, Verdict
from powerband.report.document import Block, Cell, Column, Section, Table, Text, Tone
from powerband.report.format import (
    HIGHER_IS_BETTER,
    one_line,
    percent,
    ratio,
    ratio_interval,
    row_label,
    row_value,
    value_of,
    words,
)
from powerband.report.plots import ratio_mark
from powerband.report.svg import Svg
from powerband.report.trials import trial_of

COMPARED = (
    "goodput_per_s",
    "attainment",
    "output_tokens_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
)
_TONES: dict[str, Tone] = {"better": "good", "worse": "bad", "same": "muted", "undecided": "muted"}


def compare_section(report: LoopReport) -> Section:
    """Naive against chosen: from the verdict's repeats where there are any, else from one run each."""
    table = comparison(report)
    blocks: list[Block] = [table]
    if report.verdict is None:
        lead = "One run each: without repeats a ratio has no interval."
    else:
        lead = f"Same traffic, same machine, {repeats_text(report.verdict)}, in turn."
    blocks.append(Text(f"Offered: {_offered(report)}", "muted"))
    return Section("compare", f"Naive and {after_name(report)}", lead, tuple(blocks))


def after_name(report: LoopReport) -> str:
    """What the other side is called: only settings that are recommended were chosen."""
    return "chosen" if report.chosen is not None else "candidate"


def _offered(report: LoopReport) -> str:
    traffic = report.traffic
    if traffic.concurrency is not None:
        return f"{traffic.requests} requests, {traffic.concurrency} kept in flight (closed loop)."
    if traffic.request_rate_per_s is None:
        return f"{traffic.requests} requests at once."
    return f"{traffic.requests} requests at {traffic.request_rate_per_s:.3g} requests/s on average (open loop)."


def comparison(report: LoopReport) -> Table:
    """Rows of naive, chosen and ratio; the basis column says which runs a row stands on."""
    verdict = report.verdict
    compared = {row.name: row for row in verdict.metrics} if verdict else {}
    names = [*COMPARED, *(name for name in compared if name not in COMPARED)]
    before, best = trial_of(report, report.baseline_trial), trial_of(report, report.best_trial)
    reach = strip_reach(tuple(compared.values()))
    rows = [
        compared_row(compared[name], reach, repeats_text(verdict))
        if verdict is not None and name in compared
        else _single_row(name, before, best)
        for name in names
    ]
    mixed = len({row[-1].text for row in rows}) > 1
    columns = (
        Column("Metric"),
        Column("Naive", numeric=True, basis="measured"),
        Column(after_name(report).capitalize(), numeric=True, basis="measured"),
        Column("Ratio", numeric=True, basis="computed"),
        Column("worse ← 1× → better", figure=True, note=f"log scale, ends at {reach:.2g}×", plain_name="Verdict"),
        Column("From"),
    )
    drawn = any(cell.figure for row in rows for cell in row)
    kept = [index for index, column in enumerate(columns) if (drawn or not column.figure) and (mixed or index < 5)]
    if verdict is None and best is None:
        kept = [0, 1]  # nothing to compare with
    shown = tuple(tuple(row[index] for index in kept) for row in rows)
    return Table("Naive against chosen", tuple(columns[index] for index in kept), shown)


def compared_row(row: Compared, reach: float, source: str) -> tuple[Cell, ...]:
    pair = (row.before, row.after)
    cells = [Cell(row_label(row.name, *pair)), *(Cell(row_value(row.name, value, *pair)) for value in pair)]
    tone, origin = _TONES[row.verdict], Cell(source, tone="muted")
    if isinstance(row.ratio, Missing):
        return (*cells, Cell("no ratio", one_line(row.ratio.missing, 80), "muted"), Cell(row.verdict), origin)
    if row.interval is None:
        return (*cells, Cell(ratio(row.ratio), "no interval", tone), Cell(row.verdict), origin)
    ratio_cell = Cell(ratio(row.ratio, row.interval), ratio_interval(row.interval), tone)
    return (*cells, ratio_cell, Cell(row.verdict, figure=_strip(row, row.ratio, row.interval, reach)), origin)


def _strip(row: Compared, value: float, interval: Interval, reach: float) -> Svg | None:
    """The ratio turned so that better is to the right; None where a logarithm has no place for it."""
    bounds = [interval.low, value, interval.high]
    if min(bounds) <= 0 or not math.isfinite(max(bounds)):
        return None
    low, middle, high = bounds if row.better == "higher" else [1 / bound for bound in reversed(bounds)]
    tooltip = f"{row_label(row.name, row.before, row.after)}: {ratio(value, interval)}, {row.verdict}"
    return ratio_mark(middle, low, high, reach, _TONES[row.verdict], tooltip)


def strip_reach(rows: Sequence[Compared]) -> float:
    """How far the ratio strips go, the same for all rows: the widest ratio, at least 1.5."""
    bounds = [bound for row in rows if row.interval is not None for bound in (row.interval.low, row.interval.high)]
    logs = [abs(math.log(bound)) for bound in bounds if bound > 0 and math.isfinite(bound)]
    return math.exp(max([*logs, math.log(1.5)]) * 1.08)


def _single_row(name: str, before: Trial | None, best: Trial | None) -> tuple[Cell, ...]:
    low, high = measured(before, name), measured(best, name)
    pair = (known(low), known(high))
    cells = [_value_cell(name, value, pair) for value in (low, high)]
    if isinstance(low, Missing) or isinstance(high, Missing):
        ratio_cell = Cell("no ratio", "a value is missing", "muted")
    elif low == 0:
        ratio_cell = Cell("no ratio", "the baseline is 0", "muted")
    else:
        better = (high > low) == (name in HIGHER_IS_BETTER)
        note = "no interval" if high != low else "no change"
        ratio_cell = Cell(ratio(high / low), note, "plain" if better or high == low else "bad")
    source = f"trials {before.n if before else '–'}, {best.n if best else '–'}: one run each"
    return (Cell(row_label(name, *pair)), *cells, ratio_cell, Cell(""), Cell(source, tone="muted"))


def _value_cell(name: str, value: Measured, pair: tuple[float | None, ...]) -> Cell:
    if isinstance(value, Missing):
        return Cell("not measured", one_line(value.missing, 80), "muted")
    return Cell(row_value(name, value, *pair))


def repeats_text(verdict: Verdict) -> str:
    plural = "s" if verdict.repeats != 1 else ""
    return f"{verdict.repeats} repeat{plural} a side"


def noise_text(verdict: Verdict) -> str:
    if verdict.noise_floor is None:
        return "noise floor not measured (fewer than two repeats of one config)"
    return f"noise floor ±{percent(verdict.noise_floor)}"


def measured(trial: Trial | None, name: str) -> Measured:
    if trial is None:
        return Missing(missing="there is no such trial")
    if trial.measured is None:
        return Missing(missing=one_line(trial.cause or f"the trial is {words(trial.status)}", 80))
    return value_of(trial.measured, name)
