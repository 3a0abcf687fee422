"""What a report says, apart from how it looks: sections of paragraphs, tables, figures and code.

The page and the Markdown walk the same document, so that neither can say what the other leaves out; only figures are
the page's alone, and each of them stands beside a table with the same numbers.
"""

from dataclasses import dataclass, field
from typing import Literal

from powerband.records.value import Basis, Missing
from powerband.report.format import one_line
from powerband.report.svg import Svg

Tone = Literal["plain", "good", "bad", "muted"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One value: ``note`` is a smaller second line (an interval, a reason); ``swatch`` names a colour."""

    text: str
    note: str = ""
    tone: Tone = "plain"
    code: bool = False
    swatch: str = ""
    basis: Basis | None = None
    figure: Svg | None = None


NONE = Cell("–", tone="muted")  # nothing to say here


def missing_cell(value: Missing) -> Cell:
    return Cell("–", one_line(value.missing, 60), "muted")


@dataclass(frozen=True, slots=True)
class Column:
    """``basis`` says where every number of the column comes from.

    ``figure`` marks a column that the page draws; elsewhere it is shown as text under ``plain_name``.
    """

    name: str
    numeric: bool = False
    basis: Basis | None = None
    figure: bool = False
    wide: bool = False  # holds sentences
    note: str = ""
    plain_name: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: str = "table"

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.caption!r}: a row does not have {len(self.columns)} cells")

    @property
    def shared_basis(self) -> Basis | None:
        """The basis that several columns have in common: said once and not in each head."""
        found = [column.basis for column in self.columns if column.basis is not None]
        return found[0] if len(found) > 1 and len(set(found)) == 1 else None

    @property
    def dense(self) -> bool:
        return len(self.columns) > 7


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its legend as (colour of the stylesheet, words)."""

    title: str
    svg: Svg
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures that belong side by side where there is room."""

    items: tuple[Figure, ...]
    kind: str = "figures"


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    tone: Tone = "plain"
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[str, ...]
    title: str = ""
    kind: str = "bullets"


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy as it is."""

    text: str
    label: str
    kind: str = "code"


@dataclass(frozen=True, slots=True)
class Entry:
    """A named thing with a size, a state and a few labelled sentences: a finding, a remedy."""

    name: str
    size: str
    state: str
    share: float
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entries:
    title: str
    items: tuple[Entry, ...]
    kind: str = "entries"


Block = Table | Figures | Text | Bullets | Code | Entries


@dataclass(frozen=True, slots=True)
class Section:
    """``lead`` is the section's answer in a sentence."""

    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer of the loop: ``sentence`` says all of it in one line, the other fields are its parts."""

    answer: str
    figure: str
    subject: str
    interval: str
    sentence: str
    details: tuple[str, ...] = field(default=())
    missed: str = ""  # the promise, by a change to keep all the same


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    subtitle: str
    stamp: str
    headline: Headline
    sections: tuple[Section, ...]
