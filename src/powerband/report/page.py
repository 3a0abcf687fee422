"""Any document as a page: an HTML file that needs nothing else and cannot reach the network."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from powerband.report.document import Document


def render_document(document: Document) -> str:
    """One self-contained HTML document, light or dark as the reader's system is.

    Everything from outside (names, log lines, paths) is escaped; the page's own policy forbids every request.
    """
    style, script = _asset("page.css"), _asset("page.js")
    template = _environment().get_template("page.html.j2")
    return template.render(
        document=document,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("powerband.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return files("powerband.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a content security policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
