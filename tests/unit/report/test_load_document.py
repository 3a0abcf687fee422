"""The page of one run of the load generator, from ten requests whose figures are known by hand."""

import re

import numpy as np
import pytest

from powerband.records.columns import Columns
from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import ClientCheck, Run
from powerband.records.slo import parse_slo
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.report.document import Figures
from powerband.report.load_document import _counts, _medians_ms, load_document
from powerband.report.page import render_document
from powerband.report.plots import PLOT_HEIGHT

MS, S = 1_000_000, 1_000_000_000
HOSTILE = "<script>alert(1)</script>"
UNSEEN = Missing(missing="not looked at")


def trace(index: int, ttft_ms: float, error: str | None = None) -> RequestTrace:
    """Due at ``index`` seconds; three tokens, 20 ms apart."""
    due = index * S
    first = due + round(ttft_ms * MS)
    chunks = () if error else (first, first + 20 * MS, first + 40 * MS)
    return RequestTrace(
        index=index, status="error" if error else "ok", input_tokens=5, output_tokens_asked=3, t_sched_ns=due,
        t_send_ns=due, t_end_ns=first + 40 * MS, t_chunks_ns=chunks, chunk_tokens=(1,) * len(chunks), error=error,
    )  # fmt: skip


def columns() -> Columns:
    """Six fast, two slow, two failed."""
    fast = [trace(n, 100) for n in range(6)]
    return Columns([*fast, trace(6, 900), trace(7, 900), *(trace(n, 50, f"http_503: {HOSTILE}") for n in (8, 9))])


def run(**more: object) -> Run:
    check = ClientCheck(verdict="ok", reason="starts on time", schedule_delay_s=UNSEEN, loop_lag_s=UNSEEN,
                        cpu_ratio=0.25)  # fmt: skip
    config = EngineConfig(engine="openai", model="m")
    fields = {
        "run_id": "load-1", "basis": "measured", "config": config, "effective": Missing(missing="not asked"),
        "workload": Workload(requests=(), source=f"spec {HOSTILE}"), "traces": (), "end_ns": 10 * S, "client": check,
    }  # fmt: skip
    return Run(**{**fields, **more})  # type: ignore[arg-type]


def test_the_answer_is_the_share_of_all_requests_sent() -> None:
    """Six of ten keep TTFT 500 ms: the slow and the failed count."""
    found = load_document(run(), columns(), parse_slo("ttft=500ms,attainment=0.95"), ["a note"])
    assert (found.headline.answer, found.headline.figure) == ("Promise missed", "60.0 %")
    kept = load_document(run(), columns(), parse_slo("ttft=500ms,attainment=0.5"), [])
    assert kept.headline.answer == "Promise kept"
    # 8 answers of 3 tokens in the 10 s of the run.
    assert load_document(run(), columns(), None, []).headline.figure == "2.40 output tokens/s"


def test_a_limited_client_is_the_first_thing_said() -> None:
    check = ClientCheck(verdict="limited", reason="the client used 99 % of its core", schedule_delay_s=UNSEEN,
                        loop_lag_s=UNSEEN, cpu_ratio=0.99)  # fmt: skip
    found = load_document(run(client=check), columns(), parse_slo("ttft=500ms"), [])
    assert found.headline.answer.startswith("Client-limited")
    assert found.headline.details[0] == "the client used 99 % of its core"


def test_what_comes_from_outside_is_escaped() -> None:
    page = render_document(load_document(run(), columns(), parse_slo("ttft=500ms"), [HOSTILE]))
    assert "<script>alert" not in page
    assert "http_503" in page
    assert "20.0 %" in page  # two of ten


def test_bins_hold_what_came_in_them() -> None:
    times = np.array([0, S, 3 * S // 2, 9 * S], dtype=np.int64)
    assert _counts(times, 0, 1.0, 4).tolist() == [1, 2, 0, 1]  # what is beyond the last bin belongs to it
    values = np.array([0.1, 0.3, 0.5, np.nan])
    assert _medians_ms(times, values, 0, 1.0, 4) == pytest.approx([100.0, 400.0, np.nan, np.nan], nan_ok=True)


def test_the_median_of_no_answer_is_a_gap_and_never_0() -> None:
    """Answered in the first and the last of three seconds only: two pieces of line, none of them at the bottom."""
    found = Columns([trace(0, 100), trace(1, 50, "http_503"), trace(2, 100)])
    section = next(part for part in load_document(run(end_ns=3 * S), found, None, []).sections if part.id == "time")
    figures = [figure for block in section.blocks if isinstance(block, Figures) for figure in block.items]
    drawn = next(figure for figure in figures if figure.title == "Median TTFT")
    line = re.search(r'<path d="([^"]*)" class="line', drawn.svg)
    assert line is not None
    assert line[1].count("M") == 2
    assert f"V{PLOT_HEIGHT:.1f}" not in line[1]
    assert "a gap where none was answered" in drawn.caption


def test_a_run_without_requests_is_still_a_page() -> None:
    assert "Measured" in render_document(
        load_document(run(end_ns=0, client=Missing(missing="none")), Columns(), None, [])
    )
