"""The screen of a diagnosis: answer first, bars that add up, nothing styled that must not be."""

import pytest

from powerband.records.finding import Diagnosis, Finding, Share
from powerband.report.diagnosis import render_diagnosis

FINDING = Finding(
    cause="no_batching",
    share=0.64,
    evidence="never more than 1 request was served at once",
    remedy="more slots",
    test="raise the slots",
    of="request_time",
)
DIAGNOSIS = Diagnosis(
    sources=("request timings", "engine metrics"),
    window_s=10.0,
    breakdown=(
        Share(name="prefill", seconds=1.0, share=0.1),
        Share(name="decode", seconds=9.0, share=0.9),
        Share(name="host", seconds=0.0, share=0.0),
    ),
    verdict="no_batching",
    findings=(FINDING,),
    reason=FINDING.evidence,
    request_breakdown=(
        Share(name="queueing", seconds=1.28, share=0.64),
        Share(name="decode", seconds=0.72, share=0.36),
    ),
    mean_request_s=2.0,
    unseen=("the device itself",),
    notes=("parts are [bold]inferred[/bold]",),
)


def test_the_answer_and_its_size_come_first_and_the_parts_follow() -> None:
    lines = render_diagnosis(DIAGNOSIS, width=100).splitlines()
    assert lines[0] == "no batching: 64.0 % of request time"
    assert "from request timings, engine metrics" in lines[1]
    text = "\n".join(lines)
    assert "Where 10 s of wall time went" in text
    assert "90.0 %" in text
    assert "host" not in text  # a part that took no time has no row
    assert text.index("never more than 1") < text.index("more slots") < text.index("raise the slots")
    assert "[bold]inferred[/bold]" in text  # text from evidence is never markup


def test_bars_are_to_scale() -> None:
    rows = {
        line.split()[0]: line.count("█") for line in render_diagnosis(DIAGNOSIS, width=100).splitlines() if "█" in line
    }
    assert rows["prefill"] == pytest.approx(48 / 9, abs=1)


@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_it_fits_any_width_without_escape_codes(width: int) -> None:
    text = render_diagnosis(DIAGNOSIS, width=width)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= max(width, 40)


def test_more_findings_than_fit_are_counted() -> None:
    many = Diagnosis(
        sources=(),
        window_s=1.0,
        breakdown=(),
        verdict="undecided",
        findings=(FINDING,) * 7,
        reason="nothing stands out",
    )
    text = render_diagnosis(many)
    assert text.startswith("undecided: nothing stands out")
    assert "3 smaller findings" in text
