"""Drawing: escaped SVG elements, axes with round ticks, and a plot area that keeps its text size at any width.

Positions along x are shares of the width (``12.5%``), positions along y are pixels: a page may be narrow or wide and
labels stay readable, which a scaled viewBox would not give. Curves sit in an inner viewBox that stretches, with strokes
that do not. Colours are classes of the stylesheet, so that one drawing serves light and dark.
"""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

CURVE_WIDTH = 1000  # of the inner viewBox


class Svg(str):
    """Markup made here from escaped parts; a template puts it in as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def element(name: str, *children: Svg, **attributes: str | float | None) -> Svg:
    """One element; ``_`` in an attribute's name is written ``-`` and a trailing one is dropped (``class_``)."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_number(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(children)
    return Svg(f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>")


def escaped(content: str) -> Svg:
    return Svg(html.escape(content))


def text(content: str, **attributes: str | float | None) -> Svg:
    return element("text", escaped(content), **attributes)


def titled(title: str, *children: Svg) -> Svg:
    """A group whose ``title`` shows as a tooltip and is read out."""
    return element("g", element("title", escaped(title)), *children)


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def pct(share: float) -> str:
    """A share of the width as the attribute takes it."""
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + "%"


@dataclass(frozen=True, slots=True)
class Axis:
    """``low`` to ``high`` over 0..1, with ticks and how they are written."""

    low: float
    high: float
    ticks: tuple[float, ...]
    label: Callable[[float], str]
    name: str
    log: bool = False

    def at(self, value: float) -> float:
        """Where the value lies, 0..1; values outside lie at the edge."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            place = (math.log(max(value, self.low)) - low) / (high - low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(max(place, 0.0), 1.0)


def nice_step(span: float, count: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts ``span`` into at most ``count`` parts."""
    if not (math.isfinite(span) and span > 0):
        return 1.0
    exponent = 10.0 ** math.floor(math.log10(span / count))
    return next(exponent * unit for unit in (1, 2, 5, 10, 20) if exponent * unit * count >= span * (1 - 1e-9))


def linear_axis(low: float, high: float, name: str, label: Callable[[float], str], count: int = 5) -> Axis:
    """Ends at round values at or outside ``low`` and ``high``."""
    step = nice_step(high - low, count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return Axis(first * step, last * step, tuple(i * step for i in range(first, last + 1)), label, name)


def log_axis(low: float, high: float, name: str, label: Callable[[float], str]) -> Axis:
    """Ends at 1, 2 or 5 times a power of ten; ticks there, or at every power where they are many."""
    marks = [unit * 10.0**power for power in range(_power(low) - 1, _power(high) + 2) for unit in (1, 2, 5)]
    first = max(mark for mark in marks if mark <= low * (1 + 1e-9))
    last = min(mark for mark in marks if mark >= high * (1 - 1e-9) and mark > first)
    inside = [mark for mark in marks if first <= mark <= last]
    decades = [mark for mark in inside if abs(math.log10(mark) - round(math.log10(mark))) < 1e-9]
    ticks = inside if len(inside) <= 5 else (decades if len(decades) >= 2 else inside[::2])
    return Axis(first, last, tuple(ticks[:: max(1, math.ceil(len(ticks) / 6))]), label, name, log=True)


def _power(value: float) -> int:
    return math.floor(math.log10(value))


def curve(points: Iterable[tuple[float, float]], height: float, class_: str, *, steps: bool = False) -> Svg:
    """A line through (x, y) shares, y upwards; ``steps`` goes right first, then up, as a distribution does.

    Where y is not a number there is a gap.
    """
    commands: list[str] = []
    last_y = math.nan
    for x, y in points:
        place_x, place_y = f"{x * CURVE_WIDTH:.1f}", f"{(1 - y) * height:.1f}"
        if math.isnan(y):
            commands += [f"H{place_x}"] if steps and not math.isnan(last_y) else []
        elif math.isnan(last_y):
            commands.append(f"M{place_x} {place_y}")
        elif steps:
            commands.append(f"H{place_x}" + (f"V{place_y}" if y != last_y else ""))
        else:
            commands.append(f"L{place_x} {place_y}")
        last_y = y
    return element("path", d="".join(commands), class_=class_)


def stretched(height: float, *marks: Svg) -> Svg:
    """Curves and bars drawn over a width of ``CURVE_WIDTH`` that follows the page's."""
    box = f"0 0 {CURVE_WIDTH} {_number(height)}"
    return element(
        "svg", *marks, viewBox=box, width="100%", height=height, preserveAspectRatio="none", class_="stretched"
    )


def drawing(title: str, description: str, height: float, *marks: Svg, class_: str = "plot") -> Svg:
    """The outer element, named for those who cannot see it."""
    label = element("title", escaped(title))
    words = element("desc", escaped(description))
    return element("svg", label, words, *marks, role="img", width="100%", height=height, class_=class_)


def plot(title: str, description: str, x: Axis, y: Axis | None, height: float, marks: Sequence[Svg]) -> Svg:
    """``marks`` over a grid with both axes' ticks, names and units."""
    parts = [*_x_axis(x, height), *(_y_axis(y, height) if y else []), *marks]
    return drawing(title, description, height, *parts)


def _x_axis(axis: Axis, height: float) -> list[Svg]:
    parts = []
    for tick in axis.ticks:
        place = axis.at(tick)
        parts.append(element("line", x1=pct(place), x2=pct(place), y1=0, y2=height, class_="grid"))
        parts.append(text(axis.label(tick), x=pct(place), y=height + 16, class_="tick", text_anchor="middle"))
    parts.append(element("line", x1="0%", x2="100%", y1=height, y2=height, class_="axis"))
    parts.append(text(axis.name, x="100%", y=height + 34, class_="name", text_anchor="end"))
    return parts


def _y_axis(axis: Axis, height: float) -> list[Svg]:
    parts = [text(axis.name, x=-48, y=-14, class_="name")]
    for tick in axis.ticks:
        y = (1 - axis.at(tick)) * height
        parts.append(element("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid"))
        parts.append(text(axis.label(tick), x=-8, y=y + 4, class_="tick", text_anchor="end"))
    return parts


def threshold(axis: Axis, value: float, label: str, height: float) -> Svg:
    """A limit across the plot, labelled on the side that has room."""
    place = axis.at(value)
    left = place > 0.75
    line = element("line", x1=pct(place), x2=pct(place), y1=-4, y2=height, class_="limit")
    words = text(
        label,
        x=pct(place),
        dx=-6 if left else 6,
        y=height - 8,
        class_="limit-name",
        text_anchor="end" if left else "start",
    )
    return Svg(line + words)
