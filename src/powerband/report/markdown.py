"""The report as Markdown for a pull request: the page's words and tables; the figures are the page's alone."""

import re

from powerband.report.document import Block, Bullets, Cell, Code, Column, Document, Entries, Section, Table, Text

# What could begin markup: an underscore inside a word cannot, a bracket only where a link could end.
_SPECIAL = re.compile(r"([\\`*|~]|(?<!\w)_|_(?!\w)|](?=[(\[:]))")
_REFERENCE = re.compile(r"(?<!\w)([@#])(?=\w)")  # would notify a person or link to an issue
_FOLDED = {"latency", "trials", "provenance"}


def draw_markdown(document: Document) -> str:
    """Any document as Markdown; names and log lines are escaped, so that they show as they are."""
    answer = document.headline
    lines = [f"# {escape(document.title)}", "", escape(f"{document.subtitle}, {document.stamp}"), ""]
    lines += [f"**{escape(answer.sentence)}**", "", *(f"- {escape(detail)}" for detail in answer.details)]
    for section in document.sections:
        lines += ["", *_section(section)]
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    body = [escape(section.lead)]
    for block in section.blocks:
        lines = _block(block)
        if lines:
            body += ["", *lines]
    title = escape(section.title)
    if section.id in _FOLDED:
        return [f"## {title}", "", "<details><summary>Show</summary>", "", *body, "", "</details>"]
    return [f"## {title}", "", *body]


def _block(block: Block) -> list[str]:
    match block:
        case Table():
            return _table(block)
        case Text():
            return [escape(block.text)]
        case Bullets():
            title = [f"**{escape(block.title)}**", ""] if block.title else []
            return [*title, *(f"- {escape(item)}" for item in block.items)]
        case Code():
            return [f"{escape(block.label)}:", "", *fenced(block.text)]
        case Entries():
            return _entries(block)
        case _:
            return []


def _entries(block: Entries) -> list[str]:
    lines = [f"**{escape(block.title)}**", ""]
    for entry in block.items:
        facts = ", ".join(escape(fact) for fact in (entry.size, entry.state) if fact)
        lines.append(f"- **{escape(entry.name)}**" + (f", {facts}" if facts else ""))
        lines += [f"  - {escape(label)}: {escape(text)}" for label, text in entry.fields]
    return lines


def _table(table: Table) -> list[str]:
    kept = [index for index, column in enumerate(table.columns) if not column.figure or column.plain_name]
    columns = [table.columns[index] for index in kept]
    heads = [_head(column, table) for column in columns]
    rules = ["---:" if column.numeric else "---" for column in columns]
    rows = [[_cell(row[index]) for index in kept] for row in table.rows]
    shared = f" Numbers are {table.shared_basis}." if table.shared_basis else ""
    return [f"*{escape(table.caption)}.*{shared}", "", *(f"| {' | '.join(row)} |" for row in (heads, rules, *rows))]


def _head(column: Column, table: Table) -> str:
    basis = f" ({column.basis})" if column.basis and not table.shared_basis else ""
    return escape((column.plain_name if column.figure else column.name) + basis)


def _cell(cell: Cell) -> str:
    text = code_span(cell.text) if cell.code else escape(cell.text)
    notes = [cell.note, cell.basis if cell.basis and cell.basis != cell.text else ""]
    return " ".join([text, *(escape(note if note.startswith("[") else f"({note})") for note in notes if note)])


def escape(text: str) -> str:
    """Text on one line that Markdown shows as it is: no markup, no HTML, nobody notified."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")  # without it no > ends a tag
    line = _REFERENCE.sub(r"\1<!-- -->", _SPECIAL.sub(r"\\\1", line))
    return re.sub(r"^(>|[-+#](?=\s)|\d+[.)](?=\s))", r"\\\1", line)


def code_span(text: str) -> str:
    """Text as code inside a table: its own backticks get a longer fence, its bars an escape."""
    line = " ".join(text.split()).replace("|", "\\|")
    if not line:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def fenced(text: str) -> list[str]:
    """Text as a code block that no run of backticks inside can end."""
    fence = "`" * max(3, max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return [f"{fence}sh", *text.split("\n"), fence]
