"""A diagnosis as a page: the answer, where the time went, the device's window from left to right, the evidence."""

from collections.abc import Mapping, Sequence

from powerband.records.finding import Diagnosis
from powerband.records.units import format_duration
from powerband.report.breakdown import findings_block, request_side, swatches_of, time_blocks, window_side
from powerband.report.document import Block, Bullets, Code, Document, Figure, Figures, Headline, Section
from powerband.report.format import WHOLES, clean, one_line, percent, words
from powerband.report.plots import duration_label
from powerband.report.svg import CURVE_WIDTH, Axis, Svg, element, linear_axis, plot, stretched

Strip = Mapping[str, Sequence[float]]  # name of a part: its share of each of the window's equal bins
_HEIGHT = 160


def diagnosis_document(diagnosis: Diagnosis, *, strip: Strip | None = None, command: str = "") -> Document:
    """The page's content; ``strip`` (of a trace) is drawn over the window. All text is escaped where it is drawn."""
    sections = [_time(diagnosis)]
    if strip:
        sections.append(_window(diagnosis.window_s, strip))
    return Document(
        title="Diagnosis",
        subtitle=one_line(", ".join(diagnosis.sources), 120),
        stamp=f"{format_duration(diagnosis.window_s)} watched",
        headline=_headline(diagnosis),
        sections=(*sections, _origin(diagnosis, command)),
    )


def _headline(diagnosis: Diagnosis) -> Headline:
    first = next((one for one in diagnosis.findings if one.cause == diagnosis.verdict), None)
    figure = percent(first.share) if first else "no size"
    subject, details = one_line(diagnosis.reason, 400), []
    if first:
        proved = "" if first.status == "suspected" else f"; {first.status} by a test"
        subject = f"of {WHOLES[first.of]}: {one_line(first.evidence, 400)}{proved}"
        details = [f"what helps: {one_line(first.remedy, 400)}"]
    busy = diagnosis.gpu_busy_ratio
    details += [] if busy is None else [f"the device was busy for {percent(busy)} of the window"]
    verdict = words(diagnosis.verdict)
    return Headline(verdict, figure, subject, "", f"{verdict}, {figure} {subject}", tuple(details))


def _time(diagnosis: Diagnosis) -> Section:
    blocks: list[Block] = []
    request = request_side("All requests", diagnosis)
    if request is not None:
        blocks += time_blocks("The mean request", "request", [request])
    if diagnosis.breakdown:
        blocks += time_blocks("The window", "window", [window_side("Watched", diagnosis)])
    blocks.append(findings_block("Findings", diagnosis))
    return Section("time", "Time", "Parts sum to their whole; findings stand in order of size.", tuple(blocks))


def _window(window_s: float, strip: Strip) -> Section:
    swatches = swatches_of(list(strip))
    figure = Figure(
        "The device from first to last piece of work",
        _areas(window_s, strip, swatches),
        legend=tuple((swatches[name], clean(name)) for name in strip),
    )
    bins = max((len(shares) for shares in strip.values()), default=0)
    lead = f"The window in {bins} equal parts of {format_duration(window_s / max(bins, 1))}, each shared out in full."
    return Section("timeline", "Timeline", lead, (Figures((figure,)),))


def _areas(window_s: float, strip: Strip, swatches: Mapping[str, str]) -> Svg:
    """Parts stacked on each other, one path each."""
    x = linear_axis(0.0, window_s, "time, from the first piece of work", duration_label)
    y = linear_axis(0.0, 1.0, "share of time", lambda share: percent(share, 0))
    below = [0.0] * max((len(shares) for shares in strip.values()), default=0)
    marks = []
    for name, shares in strip.items():
        above = [low + share for low, share in zip(below, shares, strict=True)]
        marks.append(element("path", d=_steps(x, window_s, below, above), class_=f"bar area {swatches[name]}"))
        below = above
    said = ", ".join(f"{name} {percent(sum(shares) / max(len(shares), 1))}" for name, shares in strip.items())
    return plot("What the device did over time", said, x, y, _HEIGHT, [stretched(_HEIGHT, *marks)])


def _steps(x: Axis, window_s: float, below: Sequence[float], above: Sequence[float]) -> str:
    """The bins in which the part occurs, as rectangles between the two lines."""
    bins, drawn = len(below), []
    for k, (low, high) in enumerate(zip(below, above, strict=True)):
        if high - low > 1e-4:
            left, right = (CURVE_WIDTH * x.at(window_s * edge / bins) for edge in (k, k + 1))
            drawn.append(f"M{left:.1f} {_HEIGHT * (1 - low):.1f}V{_HEIGHT * (1 - high):.1f}H{right:.1f}")
            drawn.append(f"V{_HEIGHT * (1 - low):.1f}Z")
    return "".join(drawn)


def _origin(diagnosis: Diagnosis, command: str) -> Section:
    tests = [f"{words(one.cause)}, {one.test}: {one.status}; {one.reason}" for one in diagnosis.proofs]
    lists = (("Tests", tests), ("Not seen", diagnosis.unseen), ("How it was read", diagnosis.notes))
    blocks: list[Block] = [Bullets(tuple(clean(line) for line in lines), title) for title, lines in lists if lines]
    if command:
        blocks.append(Code(command, "command"))
    return Section(
        "origin", "Evidence", f"Read from {clean(', '.join(diagnosis.sources)) or 'nothing'}.", tuple(blocks)
    )
