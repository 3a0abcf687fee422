"""The quality gate's answer: on the terminal, and as a page with the worst prompts side by side."""

from rich.console import RenderableType
from rich.text import Text as RichText

from powerband.records.quality import QualityMetric, QualityReport
from powerband.records.value import Missing
from powerband.report.document import Block, Bullets, Cell, Code, Column, Document, Headline, Section, Table, Text, Tone
from powerband.report.format import clean, one_line, percent, significant
from powerband.report.text import draw, rich_table
from powerband.report.width import PIPE_WIDTH

_LEAD = (
    "Larger is worse in every row. Both sides were asked the same; intervals come from drawing prompts, and the noise "
    "column is the upper end of the same figure for the reference against itself in another order and batch."
)
NAMES = {
    "perplexity_ratio": "perplexity ratio",
    "divergence": "divergence, nats",
    "disagreement": "other first choice",
    "answer_divergence": "divergence on answers, nats",
    "answer_disagreement": "other first choice on answers",
    "failed_more": "more answers wrong",
    "repeated_more": "more answers in circles",
    "cut_off_more": "more answers cut off",
    "broken_syntax_more": "more code that does not parse",
}
_TONES: dict[str, Tone] = {"passed": "good", "failed": "bad", "undecided": "muted"}
_ANSWERS = {"passed": "bold cyan", "failed": "bold red"}
_LONGEST = 700  # characters of an answer on the page


def metrics_table(report: QualityReport) -> Table:
    """One row a metric: the figure, its interval, the noise band, the limit, the verdict."""
    columns = (
        Column("Metric"),
        Column("Worse by", numeric=True),
        Column("90 % interval", numeric=True),
        Column("Noise", numeric=True),
        Column("Limit", numeric=True),
        Column("Over", numeric=True),
        Column("Verdict"),
    )
    return Table("What differs", columns, tuple(_row(metric) for metric in report.metrics))


def _row(metric: QualityMetric) -> tuple[Cell, ...]:
    limit = Cell(significant(metric.limit), f"gives way to {significant(metric.allowed)}" if _gave_way(metric) else "")
    noise = Cell("–", tone="muted") if metric.noise is None else Cell(significant(metric.noise))
    verdict = Cell(metric.verdict, tone=_TONES[metric.verdict])
    name = Cell(NAMES.get(metric.name, metric.name))
    if isinstance(metric.value, Missing) or metric.interval is None:
        why = metric.value.missing if isinstance(metric.value, Missing) else "no interval"
        return (name, Cell("–", one_line(why, 80), "muted"), Cell("–"), noise, limit, Cell("0"), verdict)
    span = f"{significant(metric.interval.low)} to {significant(metric.interval.high)}"
    return (name, Cell(significant(metric.value)), Cell(span), noise, limit, Cell(str(metric.count)), verdict)


def _gave_way(metric: QualityMetric) -> bool:
    return metric.allowed > metric.limit


def quality_document(report: QualityReport) -> Document:
    """The page's content; every text from a model or a file is escaped where it is drawn."""
    return Document(
        title="Quality gate",
        subtitle=f"{_short(report.candidate.model)} against {_short(report.reference.model)}",
        stamp=f"task {report.task}, limits of {report.preset}",
        headline=_headline(report),
        sections=(
            Section("metrics", "What differs", _LEAD, (metrics_table(report), *_notes(report))),
            Section("worst", "Worst prompts", _worst_lead(report), _worst(report)),
            Section("pair", "What was compared", f"Engine {report.engine_version}.", _pair(report)),
        ),
    )


def _headline(report: QualityReport) -> Headline:
    sentence = f"quality {report.verdict} for {report.task}: {one_line(report.reason, 300)}"
    subject = f"for {report.task}: {one_line(report.reason, 300)}"
    return Headline(report.verdict, report.verdict.capitalize(), subject, "", sentence)


def _notes(report: QualityReport) -> tuple[Block, ...]:
    return (Bullets(tuple(clean(note) for note in report.notes)),) if report.notes else ()


def _worst_lead(report: QualityReport) -> str:
    if not report.worst:
        return "No answer differs."
    return f"The {len(report.worst)} prompts on which the two differ most, greedy answers as given."


def _worst(report: QualityReport) -> tuple[Block, ...]:
    if not report.worst:
        return ()
    columns = (Column("Prompt", wide=True), Column("Reference", wide=True), Column("Candidate", wide=True))
    rows = tuple(
        (
            Cell(_cut(one.prompt), one.why),
            Cell(_cut(one.reference)),
            Cell(_cut(one.candidate), _figures(one.divergence, one.agreement)),
        )
        for one in report.worst
    )
    return (Table("Side by side", columns, rows),)


def _figures(divergence: float | None, agreement: float | None) -> str:
    if divergence is None or agreement is None:
        return ""
    return f"divergence {significant(divergence)}, same first choice {percent(agreement, 0)}"


def _pair(report: QualityReport) -> tuple[Block, ...]:
    rows = [
        f"{side}: {config.engine} {config.model} "
        + " ".join(f"{name}={value}" for name, value in sorted(config.knobs.items()))
        for side, config in (("reference", report.reference), ("candidate", report.candidate))
    ]
    command = (Code(report.command, "command"),) if report.command else ()
    return (Bullets(tuple(clean(row).strip() for row in rows)), Text(f"Took {report.seconds:.0f} s."), *command)


def _cut(text: str) -> str:
    shown = clean(text.strip())
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + " ..."


def _short(model: str) -> str:
    return clean(model.rstrip("/").rpartition("/")[2] or model)


def render_quality(
    report: QualityReport, *, page: str | None = None, width: int = PIPE_WIDTH, color: bool = False
) -> str:
    """``powerband verify --quality``: the verdict, every metric with its interval, the worst prompt, the page."""
    parts: list[RenderableType] = [
        RichText(f"quality {report.verdict}: {one_line(report.reason)}", style=_ANSWERS.get(report.verdict, "bold")),
        rich_table(metrics_table(report)),
        *(RichText(clean(note), style="dim") for note in report.notes),
    ]
    for one in report.worst[:1]:
        parts.append(RichText(f"worst prompt ({one.why}): {one_line(one.prompt, 200)}", style="dim"))
        parts.append(RichText(f"  reference: {one_line(one.reference, 300)}", style="dim"))
        parts.append(RichText(f"  candidate: {one_line(one.candidate, 300)}", style="dim"))
    if page is not None:
        parts.append(RichText(f"Page: {clean(page)}"))
    return draw(parts, width, color)
