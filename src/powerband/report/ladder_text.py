"""A ladder on the terminal: one line a rung, then what it says in a sentence."""

from rich.console import RenderableType
from rich.text import Text as RichText

from powerband.records.ladder import LadderReport, Rung
from powerband.records.metrics import Distribution
from powerband.records.units import format_duration
from powerband.records.value import Missing
from powerband.report.document import NONE, Cell, Column, Table
from powerband.report.format import clean, ratio, significant, words
from powerband.report.ladder import first_done, gain_of, ladder_document, mean_cell, share_cell
from powerband.report.text import draw, rich_table
from powerband.report.width import PIPE_WIDTH


def render_ladder(
    report: LadderReport, *, page: str | None = None, width: int = PIPE_WIDTH, color: bool = False
) -> str:
    """The table from naive to tuned, the answer, the command to start, where the page is."""
    answer = ladder_document(report).headline
    parts: list[RenderableType] = [rich_table(_table(report)), RichText(answer.sentence, style="bold")]
    parts += [RichText(detail, style="dim") for detail in answer.details]
    aside = [rung for rung in report.rungs if rung.status != "done"]
    parts += [RichText(f"Rung {rung.n} {words(rung.status)}: {clean(rung.cause or '')}", style="dim") for rung in aside]
    parts.append(RichText("Start the recommended engine:"))
    tail = [f"Report: {clean(page)}"] if page else []
    return "\n".join([draw(parts, width, color), f"  {clean(report.start_command)}", "", *tail]).rstrip() + "\n"


def _table(report: LadderReport) -> Table:
    columns = (
        Column("Rung", numeric=True),
        Column("Step, and what limits it", wide=True),
        Column("Busy", numeric=True),
        Column("MBU", numeric=True),
        Column("In\nflight", numeric=True),
        Column("Tokens\n/s", numeric=True),
        Column("Gain", numeric=True),
        Column("TTFT\np99", numeric=True),
        Column("TPOT\np99", numeric=True),
        Column("Latency\nmean", numeric=True),
    )
    base = first_done(report)
    return Table("From naive to tuned", columns, tuple(_row(rung, base) for rung in report.rungs))


def _row(rung: Rung, base: Rung | None) -> tuple[Cell, ...]:
    name = clean(rung.plan.name) + (", to be gated" if rung.plan.gated and rung.status == "done" else "")
    level = rung.shown
    if rung.status != "done" or level is None or level.metrics is None:
        return (Cell(str(rung.n)), Cell(name, words(rung.status), "muted"), *[NONE] * 8)
    metrics, use = level.metrics, level.use
    gain = gain_of(rung, base)
    return (
        Cell(str(rung.n)),
        Cell(name, words(rung.verdict or "undecided") + ("" if rung.best is not None else "; SLO not held")),
        share_cell(use.busy_ratio if use else None),
        share_cell(use.bandwidth_ratio if use else None),
        Cell(str(level.concurrency)),
        Cell(significant(level.tokens_per_s)) if level.tokens_per_s is not None else NONE,
        NONE if gain is None else Cell(ratio(gain)),
        _p99(metrics.ttft_s),
        _p99(metrics.tpot_s),
        mean_cell(level),
    )


def _p99(value: Distribution | Missing) -> Cell:
    return Cell(format_duration(value.p99)) if isinstance(value, Distribution) else NONE
