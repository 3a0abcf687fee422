"""The page of a diagnosis: the answer, parts and timeline, nothing that a hostile name could inject."""

import re

import pytest

from powerband.records.finding import Diagnosis, Finding, Share
from powerband.report.diagnosis_page import diagnosis_document
from powerband.report.page import render_document

HOSTILE = "<script>alert(1)</script>"


def diagnosis(**more: object) -> Diagnosis:
    finding = Finding(
        cause="launch_bound",
        share=0.75,
        evidence=f"gaps before {HOSTILE}",
        remedy="graphs",
        test="eager against graphs",
    )
    parts = (Share(name="kernels", seconds=0.5, share=0.25), Share(name="launch gaps", seconds=1.5, share=0.75))
    fields = {
        "sources": (f"trace {HOSTILE}.json",), "window_s": 2.0, "breakdown": parts, "verdict": "launch_bound",
        "findings": (finding,), "gpu_busy_ratio": 0.25, "reason": finding.evidence, "notes": (HOSTILE,), **more,
    }  # fmt: skip
    return Diagnosis(**fields)  # type: ignore[arg-type]


STRIP = {"at work": [0.5, 0.0], "launch gaps": [0.5, 1.0]}


def test_the_page_says_the_answer_and_escapes_what_comes_from_outside() -> None:
    page = render_document(
        diagnosis_document(diagnosis(), strip=STRIP, command="powerband locate t.json --page t.html")
    )
    assert "<script>alert" not in page
    assert "launch bound" in page
    assert "75.0 %" in page
    assert page.index("what helps: graphs") < page.index("The window")
    assert "powerband locate t.json" in re.sub(r"</?span>", "", page)


def test_every_bin_is_drawn_to_scale_and_stacked() -> None:
    page = render_document(diagnosis_document(diagnosis(), strip=STRIP))
    paths = re.findall(r'<path d="([^"]*)" class="bar area (\w+)"', page)
    # An axis of 2 s over 1000 units and 160 px: at work fills the lower half of the first second alone.
    assert [(d, swatch) for d, swatch in paths] == [
        ("M0.0 160.0V80.0H500.0V160.0Z", "c2"),
        ("M0.0 80.0V0.0H500.0V80.0ZM500.0 160.0V0.0H1000.0V160.0Z", "w1"),
    ]


def test_a_part_that_took_no_time_has_no_row() -> None:
    parts = (Share(name="kernels", seconds=2.0, share=1.0), Share(name="exposed copies", seconds=0.0, share=0.0))
    page = render_document(diagnosis_document(diagnosis(breakdown=parts)))
    assert "kernels" in page
    assert "exposed copies" not in page


@pytest.mark.parametrize("strip", [None, {}])
def test_without_a_trace_there_is_no_timeline(strip: dict[str, list[float]] | None) -> None:
    document = diagnosis_document(diagnosis(), strip=strip)
    assert [section.id for section in document.sections] == ["time", "origin"]


def test_a_diagnosis_with_next_to_nothing_is_still_a_page() -> None:
    bare = Diagnosis(sources=(), window_s=0.0, breakdown=(), verdict="undecided", findings=())
    assert "undecided" in render_document(diagnosis_document(bare))
