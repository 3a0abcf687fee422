"""The figures of a report, each from plain numbers: bars that sum, distributions, intervals and requests over time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from powerband.records.units import format_duration
from powerband.report.svg import (
    CURVE_WIDTH,
    Axis,
    Svg,
    curve,
    drawing,
    element,
    escaped,
    linear_axis,
    log_axis,
    pct,
    plot,
    stretched,
    text,
    threshold,
    titled,
)

PLOT_HEIGHT = 220
CURVE_POINTS = 400  # beyond this a distribution is drawn at evenly spaced ranks; the eye sees no difference
_BAR = 30
_WIDE_PX, _NARROW_PX = 800, 340  # of the page: from the first on, and at least
_NARROW_CHARACTERS, _WIDE_CHARACTERS = 42, 100  # of a row's words, as they fit
_ROW = 56  # of the rounds plot: a line of words above the dots
_LOG_FROM = 25  # a spread of more than this factor is drawn on a logarithmic axis


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stacked bar; ``swatch`` is a colour of the stylesheet."""

    name: str
    size: float
    swatch: str
    tooltip: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot; ``style`` is ``naive`` or ``chosen``, ``thin`` one of several repeats."""

    style: str
    values: tuple[float, ...]
    of: int  # a distribution's whole: requests sent, of which some never got so far
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """One request: scheduled, first token, end, in seconds since the run's start."""

    start_s: float
    first_s: float | None
    end_s: float
    ok: bool
    tooltip: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A row of the rounds plot; None where nothing was predicted or measured."""

    label: str
    tooltip: str
    predicted: float | None
    low: float | None
    high: float | None
    measured: float | None
    tone: Literal["good", "plain", "bad"]
    note: str = ""  # said where there is no measurement


def duration_label(seconds: float) -> str:
    return format_duration(seconds) if seconds else "0"


def stacked_bar(title: str, parts: Sequence[Part], whole: float | None = None) -> Svg:
    """Parts side by side over ``whole`` (their sum by default), wide ones named below."""
    total = sum(part.size for part in parts) if whole is None else whole
    marks: list[Svg] = []
    place = 0.0
    for part in parts:
        share = part.size / total if total > 0 else 0.0
        if share > 0:
            bar = element("rect", x=pct(place), y=0, width=pct(share), height=_BAR, class_=f"bar {part.swatch}")
            marks.append(titled(part.tooltip, bar))
            label = text(part.name, x=pct(place), dx=1, y=_BAR + 17, class_=_label_class(share, part.name))
            marks.extend([label] if share * _WIDE_PX > _text_px(part.name) else [])
        place += share
    description = "; ".join(part.tooltip for part in parts)
    return drawing(title, description, _BAR + 22, *marks, class_="plot flat")


def _label_class(share: float, name: str) -> str:
    """A label that fits on a wide page alone is hidden on a narrow one."""
    return "part" if share * _NARROW_PX > _text_px(name) else "part roomy"


def _text_px(name: str) -> float:
    return 7.2 * len(name) + 8


def magnifier(share: float) -> Svg:
    """Joins the first ``share`` of the bar above to the whole width of the bar below, which enlarges it."""
    shape = element("path", d=f"M0 0H{share * CURVE_WIDTH:.1f}L{CURVE_WIDTH} 26H0Z", class_="magnifier")
    return drawing("The part in use, enlarged below", "", 26, stretched(26, shape), class_="plot flat")


def distribution_plot(title: str, curves: Sequence[Curve], limit: tuple[float, str] | None, name: str) -> Svg | None:
    """Empirical distributions over all requests sent: where a curve meets a limit is the share that kept it."""
    values = [value for line in curves for value in line.values if value > 0]
    if not values:
        return None
    edges = [*values, limit[0]] if limit else values
    x = _value_axis(min(edges), max(edges), name)
    y = Axis(0, 1, (0, 0.25, 0.5, 0.75, 1), lambda share: f"{share * 100:g} %", "share of requests sent")
    lines = [
        curve(_steps(line, x), PLOT_HEIGHT, f"line {line.style}" + (" thin" if line.thin else ""), steps=True)
        for line in sorted(curves, key=lambda line: not line.thin)
        if line.values
    ]
    marks = [stretched(PLOT_HEIGHT, *lines)]
    if limit:
        marks.append(threshold(x, limit[0], limit[1], PLOT_HEIGHT))
    return plot(title, f"{y.name} against {name}", x, y, PLOT_HEIGHT, marks)


def _value_axis(low: float, high: float, name: str) -> Axis:
    if high / low > _LOG_FROM:
        return log_axis(low, high, f"{name} (log)", duration_label)
    return linear_axis(0, high * 1.05, name, duration_label, count=4)


def _steps(line: Curve, x: Axis) -> list[tuple[float, float]]:
    values = sorted(line.values)
    n = len(values)
    ranks = range(1, n + 1)
    if n > CURVE_POINTS:
        ranks = range(1, n + 1, math.ceil(n / CURVE_POINTS))
    points = [(0.0, 0.0), *((x.at(values[rank - 1]), rank / line.of) for rank in ranks)]
    return [*points, (x.at(values[-1]), n / line.of), (1.0, n / line.of)]


def rate_plot(title: str, lines: Sequence[tuple[str, Sequence[float]]], bin_s: float, name: str) -> Svg:
    """Rates in equal bins of time, one line a run; ``lines`` are (style, value per bin, NaN where there is none)."""
    bins = max(len(values) for _, values in lines)
    x = linear_axis(0, max(bins * bin_s, bin_s), "time since the first request was due", duration_label, count=4)
    peak = max((value for _, values in lines for value in values if not math.isnan(value)), default=0.0)
    y = linear_axis(0, peak or 1.0, name, lambda value: f"{value:,g}", count=4)
    curves = [
        curve(_bins(values, bin_s, x, y), PLOT_HEIGHT, f"line {style}", steps=True) for style, values in lines if values
    ]
    return plot(title, f"{name} against {x.name}", x, y, PLOT_HEIGHT, [stretched(PLOT_HEIGHT, *curves)])


def _bins(values: Sequence[float], bin_s: float, x: Axis, y: Axis) -> list[tuple[float, float]]:
    places = [value if math.isnan(value) else y.at(value) for value in values]
    points = [(x.at(index * bin_s), place) for index, place in enumerate(places)]
    return [*points, (x.at(len(values) * bin_s), places[-1])]


def waterfall(title: str, spans: Sequence[Span], horizon_s: float, style: str) -> Svg:
    """One thin row a request, in order of arrival: waiting for the first token, then streaming, then done."""
    x = linear_axis(0, horizon_s, "time since the first request was due", duration_label, count=4)
    row = max(2.4, min(8.0, 320 / max(len(spans), 1)))
    height = row * len(spans)
    bars = [_span(span, index * row, row, x, style) for index, span in enumerate(spans)]
    return plot(title, f"one row a request, {len(spans)} rows", x, None, height, [stretched(height, *bars)])


def _span(span: Span, y: float, row: float, x: Axis, style: str) -> Svg:
    first = span.end_s if span.first_s is None else span.first_s
    thick = row * 0.72
    rects = [_bar(x, span.start_s, first, y, thick, "wait" if span.ok else "wait lost")]
    if span.first_s is not None:
        rects.append(_bar(x, first, span.end_s, y, thick, f"stream {style}" + ("" if span.ok else " lost")))
    return titled(span.tooltip, *rects)


def _bar(x: Axis, start: float, end: float, y: float, height: float, class_: str) -> Svg:
    left, right = x.at(start) * CURVE_WIDTH, x.at(end) * CURVE_WIDTH
    return element("rect", x=left, y=y, width=max(right - left, 0.6), height=height, class_=class_)


def estimates_plot(title: str, rows: Sequence[Estimate], baseline: float | None, name: str) -> Svg | None:
    """Prediction (interval and hollow dot) and measurement (full dot) of each round, on one axis."""
    values = [value for row in rows for value in (row.predicted, row.low, row.high, row.measured) if value is not None]
    if not values:
        return None
    x = linear_axis(0, max([*values, baseline or 0.0]), name, lambda value: f"{value:,g}", count=5)
    height = _ROW * len(rows)
    marks = [_baseline(x, baseline, height)] if baseline is not None else []
    for index, row in enumerate(rows):
        marks.append(_estimate(row, index * _ROW, x))
    description = "; ".join(row.tooltip for row in rows)
    return plot(title, description, x, None, height, marks)


def _baseline(x: Axis, value: float, height: float) -> Svg:
    place = pct(x.at(value))
    return element("line", x1=place, x2=place, y1=0, y2=height, class_="base")


def _estimate(row: Estimate, top: float, x: Axis) -> Svg:
    y = top + 36
    marks = [_row_name(row, top, _NARROW_CHARACTERS, "narrow"), _row_name(row, top, _WIDE_CHARACTERS, "roomy")]
    if row.low is not None and row.high is not None:
        marks.append(element("line", x1=pct(x.at(row.low)), x2=pct(x.at(row.high)), y1=y, y2=y, class_="interval"))
    if row.predicted is not None:
        marks.append(element("circle", cx=pct(x.at(row.predicted)), cy=y, r=4.5, class_="dot hollow"))
    if row.measured is not None:
        marks.append(element("circle", cx=pct(x.at(row.measured)), cy=y, r=5, class_=f"dot {row.tone}"))
    return titled(row.tooltip, *marks)


def _row_name(row: Estimate, top: float, characters: int, class_: str) -> Svg:
    limit = characters - len(row.note)
    name = row.label if len(row.label) <= limit else row.label[: limit - 1] + "…"
    note = element("tspan", escaped(f" {row.note}"), class_="bad") if row.note else ""
    return element("text", Svg(escaped(name) + note), x=0, y=top + 20, class_=f"row-name {class_}")


def ratio_mark(value: float, low: float, high: float, reach: float, tone: str, tooltip: str) -> Svg:
    """A ratio with its interval on a logarithmic strip from 1/reach to reach: right of the line is better."""

    def at(share: float) -> float:
        return 0.5 + max(-0.5, min(0.5, math.log(share) / (2 * math.log(reach)))) if share > 0 else 0.0

    y = 11
    marks = [element("line", x1="50%", x2="50%", y1=0, y2=22, class_="base")]
    marks.append(element("line", x1=pct(at(low)), x2=pct(at(high)), y1=y, y2=y, class_=f"interval {tone}"))
    marks.append(element("circle", cx=pct(at(value)), cy=y, r=4, class_=f"dot {tone}"))
    return drawing(tooltip, "", 22, *marks, class_="plot strip")
