"""Where the time went, before and after: parts that sum to their whole, and the causes with their evidence."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerband.records.finding import Diagnosis, Finding, Share
from powerband.records.rounds import LoopReport
from powerband.records.units import format_duration
from powerband.report.compare import after_name
from powerband.report.document import (
    NONE,
    Block,
    Bullets,
    Cell,
    Column,
    Entries,
    Entry,
    Figure,
    Figures,
    Section,
    Table,
    Text,
)
from powerband.report.format import clean, percent, percents, words
from powerband.report.plots import Part, stacked_bar
from powerband.report.svg import Svg, element, escaped

_SWATCHES = {
    "prefill": "c1",
    "decode": "c2",
    "decode held up by prefill": "c3",
    "host": "c4",
    "client": "c6",
    "queueing": "w1",
    "contention": "w1",
    "no work": "c0",
    "unseen": "c5",
    "unanswered": "c5",
    # Of traces.
    "at work": "c2",
    "kernels": "c2",
    "exposed communication": "c1",
    "exposed copies": "c6",
    "launch gaps": "w1",
    "input pipeline": "c3",
    "host sync": "c4",
    "waiting for an event": "c1",
    "between queued kernels": "c6",
}
_OTHERS = ("c3", "c4", "c5", "c6")  # for parts with another name
_UNACCOUNTED = "not accounted for"
_TOLERANCE = 0.0005  # of the whole: below what the tables print


@dataclass(frozen=True, slots=True)
class Side:
    """One breakdown: its parts in seconds, which sum to ``whole_s``."""

    label: str
    whole_s: float
    parts: tuple[tuple[str, float], ...]


def time_section(report: LoopReport) -> Section:
    """The mean request and the wall time, before and after on one scale, then the findings of each."""
    before, after = report.diagnosis_before, report.diagnosis_after
    labelled = [("Naive", before), *([(after_name(report).capitalize(), after)] if after else [])]
    requests = [side for label, diagnosis in labelled if (side := request_side(label, diagnosis)) is not None]
    windows = [window_side(label, diagnosis) for label, diagnosis in labelled]
    blocks: list[Block] = []
    if requests:
        blocks += time_blocks("The mean request", "request", requests)
    blocks += time_blocks("The engine's wall time", "window", windows)
    for label, diagnosis in labelled:
        blocks.append(findings_block(f"Findings in the {label.lower()} run", diagnosis))
    if after is None:
        blocks.append(Text("No other settings were diagnosed.", "muted"))
    sources = [_sources(label, diagnosis) for label, diagnosis in labelled]
    notes = [f"{label} run: {clean(note)}" for label, diagnosis in labelled for note in diagnosis.notes]
    blocks.append(Bullets((*sources, *notes), "How it was read"))
    return Section("time", "Time", _lead(before, after), tuple(blocks))


def _sources(label: str, diagnosis: Diagnosis) -> str:
    busy = diagnosis.gpu_busy_ratio
    gpu = "" if busy is None else f"; the GPU was busy {percent(busy)} of the window"
    return f"{label} run: read from {', '.join(map(clean, diagnosis.sources)) or 'nothing'}{gpu}"


def _lead(before: Diagnosis, after: Diagnosis | None) -> str:
    sides = [("Before", before), *([("After", after)] if after else [])]
    return " ".join(f"{label}: {words(side.verdict)}.{_reason(side)}" for label, side in sides)


def _reason(diagnosis: Diagnosis) -> str:
    reason = clean(diagnosis.reason).strip().rstrip(".")
    return f" {reason[0].upper()}{reason[1:]}." if reason else ""


def window_side(label: str, diagnosis: Diagnosis) -> Side:
    return _side(label, diagnosis.window_s, diagnosis.breakdown)


def request_side(label: str, diagnosis: Diagnosis) -> Side | None:
    if diagnosis.mean_request_s is None or not diagnosis.request_breakdown:
        return None
    return _side(label, diagnosis.mean_request_s, diagnosis.request_breakdown)


def _side(label: str, whole_s: float, shares: Sequence[Share]) -> Side:
    """What the whole has beyond the sum of its parts is named, so that bars and tables always sum."""
    parts = [(clean(share.name), share.seconds) for share in shares]
    missing = whole_s - sum(seconds for _, seconds in parts)
    if missing > _TOLERANCE * whole_s:
        parts.append((_UNACCOUNTED, missing))
    return Side(label, whole_s, tuple(parts))


def swatches_of(names: list[str]) -> dict[str, str]:
    """A colour of the stylesheet for each part."""
    others = iter(_OTHERS * (len(names) // len(_OTHERS) + 1))
    return {name: _SWATCHES.get(name) or next(others) for name in names}


def time_blocks(title: str, whole: str, sides: list[Side]) -> list[Block]:
    """A bar a side on one scale, and the table with the same numbers; parts that took no time anywhere are left out."""
    names = list(dict.fromkeys(name for side in sides for name, seconds in side.parts if seconds))
    swatches = swatches_of(names)
    longest = max(side.whole_s for side in sides)
    bars = [_bar(side, swatches, longest) for side in sides]
    return [Figures((Figure(title, Svg("".join(bars))),)), _table(title, whole, names, swatches, sides)]


def _bar(side: Side, swatches: dict[str, str], longest: float) -> Svg:
    label = f"{side.label}, {format_duration(side.whole_s)}"
    parts = [
        Part(
            name,
            seconds,
            swatches[name],
            f"{name}: {format_duration(seconds)}, {percent(seconds / (side.whole_s or 1))}",
        )
        for name, seconds in side.parts
        if seconds
    ]
    return Svg(element("p", escaped(label), class_="bar-label") + stacked_bar(label, parts, longest))


def _table(title: str, whole: str, names: list[str], swatches: dict[str, str], sides: list[Side]) -> Table:
    cells = [_column(side, names) for side in sides]
    rows = [
        (Cell(name, swatch=swatches[name]), *(cell for column in cells for cell in column[index]))
        for index, name in enumerate(names)
    ]
    rows.append((Cell(whole), *(cell for column in cells for cell in column[-1])))
    columns = [Column("Part")]
    for side in sides:
        columns += [Column(f"{side.label}, s", numeric=True, basis="computed"), Column("share", numeric=True)]
    return Table(title, tuple(columns), tuple(rows))


def _column(side: Side, names: list[str]) -> list[tuple[Cell, Cell]]:
    """Seconds and share for each name, then their sum, which is the whole."""
    whole = side.whole_s or 1.0
    decimals = 1 if whole >= 100 else 2 if whole >= 1 else 4
    seconds = dict(side.parts)
    shown = percents([seconds.get(name, 0.0) / whole for name in names])
    absent = (NONE, NONE)
    cells = [
        (Cell(f"{seconds[name]:,.{decimals}f}"), Cell(share)) if name in seconds else absent
        for name, share in zip(names, shown, strict=True)
    ]
    total = sum(seconds.values())
    return [*cells, (Cell(f"{total:,.{decimals}f}"), Cell(percents([total / whole])[0]))]


def findings_block(title: str, diagnosis: Diagnosis) -> Entries | Text:
    if not diagnosis.findings:
        return Text(f"{title}: none. Verdict: {words(diagnosis.verdict)}.", "muted")
    return Entries(title, tuple(_entry(finding) for finding in diagnosis.findings))


def _entry(finding: Finding) -> Entry:
    fields = (("Evidence", clean(finding.evidence)), ("Remedy", clean(finding.remedy)), ("Proof", clean(finding.test)))
    whole = "the window" if finding.of == "window" else "request time"
    return Entry(words(finding.cause), f"{percent(finding.share)} of {whole}", finding.status, finding.share, fields)
