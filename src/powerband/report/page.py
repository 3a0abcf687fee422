"""The pages, of a loop and of the quality gate: HTML files that need nothing else and cannot reach the network."""

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from powerband.records.finding import Diagnosis
from powerband.records.quality import QualityReport
from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.report.diagnosis_page import Strip, diagnosis_document
from powerband.report.document import Document
from powerband.report.loop_document import loop_document
from powerband.report.quality import quality_document


def render_page(report: LoopReport, runs: Mapping[str, Run]) -> str:
    """One self-contained HTML document, light or dark as the reader's system is.

    ``runs`` holds the raw runs by ``Trial.run_id``; the plots of a run that is not there are left out and the page says
    so. Everything from outside (names, log lines, paths) is escaped; the page's own policy forbids every request.
    """
    return render_document(loop_document(report, runs))


def render_quality_page(report: QualityReport) -> str:
    """The quality gate's page: what differs, and the worst prompts side by side."""
    return render_document(quality_document(report))


def render_diagnosis_page(diagnosis: Diagnosis, *, strip: Strip | None = None, command: str = "") -> str:
    """What ``locate`` found; ``strip`` is the shares of a trace's window, bin by bin."""
    return render_document(diagnosis_document(diagnosis, strip=strip, command=command))


def render_document(document: Document) -> str:
    """Any document as one page; everything in it is escaped."""
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
