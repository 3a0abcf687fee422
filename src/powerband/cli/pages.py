"""Pages among the reports of a home."""

from pathlib import Path

from powerband.report.document import Document
from powerband.report.markdown import draw_markdown
from powerband.report.page import render_document


def write_page(home: Path, name: str, document: Document) -> Path:
    """The page, and the same as Markdown; gives the page's path."""
    folder = home / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{name}.html"
    page.write_text(render_document(document), encoding="utf-8")
    page.with_suffix(".md").write_text(draw_markdown(document), encoding="utf-8")
    return page
