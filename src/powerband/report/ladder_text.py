"""A ladder on the terminal: one line a rung, then what it says in a sentence."""

from rich.console import RenderableType
from rich.text import Text as RichText

from powerband.records.ladder import LadderReport, Rung
from powerband.records.metrics import Distribution
from powerband.records.units import format_duration
from powerband.records.value import Measured, Missing, known
from powerband.report.document import Cell, Column, Table
from powerband.report.format import PIPE_WIDTH, clean, ratio, significant, words
from powerband.report.ladder import ladder_document
from powerband.report.text import draw, rich_table

_NONE = Cell("–", tone="muted")


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
    base = next((rung for rung in report.rungs if rung.status == "done"), None)
    return Table("From naive to tuned", columns, tuple(_row(rung, base) for rung in report.rungs))


def _row(rung: Rung, base: Rung | None) -> tuple[Cell, ...]:
    name = clean(rung.plan.name) + (", to be gated" if rung.plan.gated and rung.status == "done" else "")
    level = rung.shown
    if rung.status != "done" or level is None or level.metrics is None:
        return (Cell(str(rung.n)), Cell(name, words(rung.status), "muted"), *[_NONE] * 8)
    metrics, use = level.metrics, level.use
    high, low = known(rung.tokens_per_s), None if base is None else known(base.tokens_per_s)
    return (
        Cell(str(rung.n)),
        Cell(name, words(rung.verdict or "undecided") + ("" if rung.best is not None else "; SLO not held")),
        _share(use.busy_ratio if use else None),
        _share(use.bandwidth_ratio if use else None),
        Cell(str(level.concurrency)),
        Cell(significant(level.tokens_per_s)) if level.tokens_per_s is not None else _NONE,
        Cell(ratio(high / low)) if high and low else _NONE,
        _p99(metrics.ttft_s),
        _p99(metrics.tpot_s),
        Cell(format_duration(metrics.e2e_s.mean)) if isinstance(metrics.e2e_s, Distribution) else _NONE,
    )


def _share(value: Measured | None) -> Cell:
    number = known(value)
    return _NONE if number is None else Cell(f"{number * 100:.0f} %")


def _p99(value: Distribution | Missing) -> Cell:
    return Cell(format_duration(value.p99)) if isinstance(value, Distribution) else _NONE
