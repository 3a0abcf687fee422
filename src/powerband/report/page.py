"""The page of a loop: one HTML file that needs nothing else and cannot reach the network."""

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.report.loop_document import loop_document


def render_page(report: LoopReport, runs: Mapping[str, Run]) -> str:
    """One self-contained HTML document, light or dark as the reader's system is.

    ``runs`` holds the raw runs by ``Trial.run_id``; the plots of a run that is not there are left out and the page says
    so. Everything from outside (names, log lines, paths) is escaped; the page's own policy forbids every request.
    """
    style, script = _asset("page.css"), _asset("page.js")
    template = _environment().get_template("page.html.j2")
    return template.render(
        document=loop_document(report, runs),
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
