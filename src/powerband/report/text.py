"""Tables for the terminal: as wide as it is, coloured only where a person reads it."""

import io
import os
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text as RichText

from powerband.records.finding import Diagnosis
from powerband.records.metrics import Distribution, Metrics
from powerband.records.rounds import LoopReport
from powerband.records.run import ClientCheck, Trial
from powerband.records.slo import Slo
from powerband.records.units import format_duration
from powerband.records.value import Basis, Missing
from powerband.records.verdict import Verdict
from powerband.report.compare import after_name, compared_row, comparison, noise_text, repeats_text
from powerband.report.document import NONE, Cell, Column, Table, Tone, missing_cell
from powerband.report.format import WHOLES, clean, one_line, percent, significant, slo_text, words
from powerband.report.headline import headline, quality_text
from powerband.report.trials import FIGURES, figure_cell, figure_names, first_with, settings_cell, status_cell
from powerband.report.width import PIPE_WIDTH

_STYLES: dict[Tone, str] = {"plain": "", "good": "cyan", "bad": "red", "muted": "dim"}
_ROOMY = 100
_ANSWERS = {"keep": "bold cyan", "revert": "bold red"}
_LEFT_OUT = {"ttft_p50_s", "tpot_p50_s"}  # of the trials: the page has them, a terminal has no room
_LEFT_OUT_NARROW = {*_LEFT_OUT, "attainment", "tpot_p99_s"}


def render_loop(report: LoopReport, *, page: str | None = None, width: int = PIPE_WIDTH, color: bool = False) -> str:
    """The end of ``powerband loop``: the verdict, naive against chosen, the command to start, where the page is.

    The command stands on a line of its own, never wrapped, so that it can be copied.
    """
    answer = headline(report)
    parts: list[RenderableType] = [
        RichText(answer.sentence, style=_ANSWERS.get(answer.answer, "bold")),
        *(RichText(detail, style="dim") for detail in answer.details),
        *_limits(report),
        rich_table(comparison(report)),
        RichText("Start the engine:"),
    ]
    tail = [f"Report: {clean(page)}"] if page else []
    return "\n".join([draw(parts, width, color), f"  {clean(report.start_command)}", "", *tail]).rstrip() + "\n"


def _limits(report: LoopReport) -> list[RichText]:
    """What limited the engine before and after, a line each; where one config ran, the headline says it."""
    lines = [limit_line("Naive", report.diagnosis_before)] if len(report.trials) > 1 else []
    if report.diagnosis_after is not None:
        lines.append(limit_line(after_name(report).capitalize(), report.diagnosis_after))
    return [RichText(line) for line in lines]


def limit_line(who: str, diagnosis: Diagnosis) -> str:
    """``Naive: no batching, 71 % of request time (suspected): more slots``; or why nothing can be said."""
    if diagnosis.verdict == "undecided":
        return f"{who}: what limits it is undecided: {one_line(diagnosis.reason, 120)}"
    first = next((one for one in diagnosis.findings if one.cause == diagnosis.verdict), None)
    if first is None:
        return f"{who}: {words(diagnosis.verdict)}: {one_line(diagnosis.reason, 120)}"
    size = f"{percent(first.share)} of {WHOLES[first.of]} ({first.status})"
    return f"{who}: {words(first.cause)}, {size}: {one_line(first.remedy, 120)}"


def render_metrics(
    metrics: Metrics,
    slo: Slo | None,
    client: ClientCheck | Missing,
    *,
    basis: Basis = "measured",
    width: int = PIPE_WIDTH,
    color: bool = False,
) -> str:
    """What a run delivered: rates, latencies, and whether the load generator was the limit."""
    counts = f"{metrics.completed} of {metrics.requests} requests completed in {format_duration(metrics.duration_s)}"
    counts += f"; {metrics.errors} errors, {metrics.dropped} dropped ({basis})"
    parts: list[RenderableType] = [RichText(counts), rich_table(_rates(metrics)), rich_table(_latencies(metrics))]
    if slo is not None and metrics.attainment is not None:
        met = metrics.attainment >= slo.attainment
        text = f"SLO {slo_text(slo)}: attainment {percent(metrics.attainment)}, {'met' if met else 'not met'}"
        parts.append(RichText(text, style=_STYLES["good" if met else "bad"]))
    else:
        parts.append(RichText("No SLO was set: no attainment, no goodput.", style="dim"))
    parts.append(_client_line(client))
    return draw(parts, width, color)


def _client_line(client: ClientCheck | Missing) -> RichText:
    if isinstance(client, Missing):
        return RichText(f"Load generator not checked: {one_line(client.missing)}", style="dim")
    if client.verdict == "ok":
        return RichText(f"Load generator ok: {one_line(client.reason)}", style="dim")
    return RichText(f"client-limited, do not use these numbers: {one_line(client.reason)}", style=_STYLES["bad"])


def _rates(metrics: Metrics) -> Table:
    rows = [
        ("Requests/s", metrics.request_rate_per_s),
        ("Input tokens/s", metrics.input_tokens_per_s),
        ("Output tokens/s", metrics.output_tokens_per_s),
        ("Total tokens/s", metrics.total_tokens_per_s),
    ]
    if metrics.goodput_per_s is not None:
        rows.append(("Goodput, requests/s", metrics.goodput_per_s))
    columns = (Column("Rate"), Column("Value", numeric=True))
    if not metrics.requests:  # 0 would be a measurement
        nothing = Cell("–", "no request was counted", "muted")
        return Table("Rates", columns, tuple((Cell(name), nothing) for name, _ in rows))
    return Table("Rates", columns, tuple((Cell(name), Cell(significant(value))) for name, value in rows))


def _latencies(metrics: Metrics) -> Table:
    rows = (
        ("TTFT", metrics.ttft_s),
        ("TTFT from send", metrics.ttft_from_send_s),
        ("TPOT", metrics.tpot_s),
        ("ITL", metrics.itl_s),
        ("E2E", metrics.e2e_s),
    )
    heads = ("Mean", "p50", "p90", "p99", "n")
    columns = (Column("Latency, ms"), *(Column(head, numeric=True) for head in heads))
    return Table("Latencies", columns, tuple(_latency(name, found) for name, found in rows))


def _latency(name: str, found: Distribution | Missing) -> tuple[Cell, ...]:
    if isinstance(found, Missing):
        return (Cell(name, one_line(found.missing, 60)), *[NONE] * 5)
    values = (found.mean, found.p50, found.p90, found.p99)
    return (Cell(name), *(Cell(significant(value * 1000)) for value in values), Cell(f"{found.n:,}"))


def render_comparison(verdict: Verdict, *, width: int = PIPE_WIDTH, color: bool = False) -> str:
    """``powerband verify``: the answer and its reason, every metric with its ratio and interval, noise and quality."""
    columns = (
        Column("Metric"),
        Column("Before", numeric=True),
        Column("After", numeric=True),
        Column("Ratio", numeric=True),
        Column("Verdict"),
    )
    rows = tuple(compared_row(row, 2.0, "")[:-1] for row in verdict.metrics)
    quality = quality_text(verdict.quality)
    effect = f"smallest effect that counts {percent(verdict.minimum_effect)}"
    parts: list[RenderableType] = [
        RichText(f"{verdict.verdict}: {one_line(verdict.reason)}", style=_ANSWERS.get(verdict.verdict, "bold")),
        rich_table(Table("Before and after", columns, rows)),
        RichText(f"{repeats_text(verdict)}; {noise_text(verdict)}; {effect}", style="dim"),
        RichText(quality, style=_STYLES["bad"] if verdict.quality.verdict == "failed" else "dim"),
        *(RichText(one_line(note), style="dim") for note in verdict.notes),
    ]
    return draw(parts, width, color)


def render_trials(trials: Sequence[Trial], *, width: int = PIPE_WIDTH, color: bool = False) -> str:
    """One row a trial, then the causes of those that failed, were pruned or cannot be used."""
    listed = tuple(trials)
    if not listed:
        return "No trial was made.\n"
    base = next((trial for trial in listed if trial.purpose == "baseline"), None)
    first = first_with(listed)
    roomy = width >= _ROOMY
    left_out = _LEFT_OUT if roomy else _LEFT_OUT_NARROW
    names = [name for name in figure_names(listed) if name not in left_out]
    columns = (
        Column("Trial", numeric=True),
        *([Column("For")] if roomy else []),
        Column("Status"),
        *(Column(FIGURES[name].replace(" ", "\n", 1), numeric=True) for name in names),
        *([Column("Took\ns", numeric=True)] if roomy else []),
        Column("Settings", wide=True),
    )
    rows = tuple(
        (
            Cell(str(trial.n)),
            *([Cell(words(trial.purpose))] if roomy else []),
            status_cell(trial, cause=False),
            *(Cell(figure_cell(trial, name).text, tone=figure_cell(trial, name).tone) for name in names),
            *([Cell(significant(trial.engine_seconds) if trial.engine_seconds else "–")] if roomy else []),
            settings_cell(trial, base, first),
        )
        for trial in listed
    )
    unusable = [trial for trial in listed if trial.status != "done"]
    causes = [RichText(f"Trial {trial.n} {words(trial.status)}: {status_cell(trial).note}") for trial in unusable]
    return draw([rich_table(Table("Trials", columns, rows)), *causes], width, color)


def render_journal(rows: Sequence[Mapping[str, object]], *, width: int = PIPE_WIDTH, color: bool = False) -> str:
    """A list of things the journal holds; the keys of the first row are the columns, numbers are set right."""
    if not rows:
        return "The journal is empty.\n"
    names = list(rows[0])
    numeric = {name: all(isinstance(row.get(name), int | float | None) for row in rows) for name in names}
    columns = tuple(Column(words(name), numeric=numeric[name]) for name in names)
    body = tuple(tuple(_journal_cell(row.get(name)) for name in names) for row in rows)
    return draw([rich_table(Table("Journal", columns, body))], width, color)


def _journal_cell(value: object) -> Cell:
    if value is None or value == "":
        return NONE
    if isinstance(value, Missing):
        return missing_cell(value)
    return Cell(significant(value) if isinstance(value, float) else one_line(str(value)))


def rich_table(table: Table) -> RichTable:
    """Cells are text, never markup: a name that looks like a style tag shows as it is."""
    kept = [index for index, column in enumerate(table.columns) if not column.figure or column.plain_name]
    has_wide = any(column.wide for column in table.columns)  # the one column that gives way
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for index in kept:
        column = table.columns[index]
        name = column.plain_name if column.figure else column.name
        justify: JustifyMethod = "right" if column.numeric else "left"
        drawn.add_column(RichText(name), justify=justify, overflow="fold", no_wrap=has_wide and not column.wide)
    for row in table.rows:
        drawn.add_row(*(_rich_cell(row[index]) for index in kept))
    return drawn


def _rich_cell(cell: Cell) -> RichText:
    text = RichText(cell.text, style=_STYLES[cell.tone])
    if cell.note:
        text.append(" " if cell.note.startswith("[") else "\n").append(cell.note, style="dim")
    return text


def draw(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """The parts as lines without trailing blanks; without ``color`` there is no escape sequence in them."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(width, 40),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color or bool(os.environ.get("NO_COLOR")),
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
