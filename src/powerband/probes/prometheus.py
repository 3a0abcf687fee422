"""Read the Prometheus text format (0.0.4 and OpenMetrics samples), bounded and safe on hostile input.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import re
from collections.abc import Iterator

from powerband.records.value import Record

MAX_SERIES = 200_000
MAX_LINE_CHARS = 16_384

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class Series(Record):
    """One sample line: its labels and its value (NaN and infinities as they stand)."""

    labels: dict[str, str]
    value: float


class Scrape(Record):
    """The series of a page by metric name; ``unreadable`` counts lines that were left out."""

    series: dict[str, tuple[Series, ...]]
    unreadable: int = 0

    def values(self, name: str, **labels: str) -> list[float]:
        """Values of ``name`` over all label sets that hold ``labels``."""
        return [
            one.value
            for one in self.series.get(name, ())
            if all(one.labels.get(key) == wanted for key, wanted in labels.items())
        ]


def parse_metrics(text: str) -> Scrape:
    """Read a /metrics page; a line that cannot be read is counted, not guessed. Lines beyond the limit are left out."""
    found: dict[str, list[Series]] = {}
    unreadable = count = 0
    for line in _lines(text):
        sample = _parse_line(line) if len(line) <= MAX_LINE_CHARS and count < MAX_SERIES else None
        if sample is None:
            unreadable += 1
            continue
        count += 1
        found.setdefault(sample[0], []).append(sample[1])
    return Scrape(series={name: tuple(series) for name, series in found.items()}, unreadable=unreadable)


def _lines(text: str) -> Iterator[str]:
    for raw in text.split("\n"):
        line = raw.strip()
        if line and not line.startswith("#"):
            yield line


def _parse_line(line: str) -> tuple[str, Series] | None:
    match = _NAME.match(line)
    if match is None:
        return None
    labels: dict[str, str] = {}
    at = match.end()
    if at < len(line) and line[at] == "{":
        at += 1
        while at < len(line) and line[at] != "}":
            label = _LABEL.match(line, at)
            if label is None:
                return None
            labels[label[1]] = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), label[2])
            at = label.end()
            if at < len(line) and line[at] == ",":
                at += 1
        if at >= len(line):
            return None
        at += 1
    elif at < len(line) and not line[at].isspace():
        return None
    words = line[at:].split(" # ")[0].split()  # an exemplar may follow; a timestamp may
    if not 1 <= len(words) <= 2:
        return None
    try:
        return match[0], Series(labels=labels, value=float(words[0]))
    except ValueError:
        return None
