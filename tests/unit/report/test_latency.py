"""The latency section with runs of every shape: one request, none answered, many thousands."""

import msgspec
import pytest

from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.report.document import Figures, Table
from powerband.report.latency import latency_section, token_rates
from tests.support import sample_report as sample


def trace(index: int, status: str = "ok", first_ms: int = 100, tokens: int = 3) -> RequestTrace:
    due = index * 10_000_000
    chunks = tuple(due + (first_ms + 20 * n) * 1_000_000 for n in range(tokens))
    return msgspec.convert(
        [index, status, 8, tokens, due, due, chunks[-1] if chunks else due, chunks, [1] * tokens, None], RequestTrace
    )


def section_of(traces: tuple[RequestTrace, ...]) -> tuple[str, list[str], list[Table]]:
    """The lead, the titles of the figures drawn and the tables, for a baseline run with these requests."""
    run = sample.make_run("baseline", sample.NAIVE)
    end = max((trace.t_end_ns or 0 for trace in traces), default=0)
    runs: dict[str, Run] = {run.run_id: msgspec.structs.replace(run, traces=traces, end_ns=end)}
    section = latency_section(sample.sample_report(), runs)
    titles = [item.title for block in section.blocks if isinstance(block, Figures) for item in block.items]
    return section.lead, titles, [block for block in section.blocks if isinstance(block, Table)]


def test_one_request() -> None:
    _, titles, tables = section_of((trace(0),))
    assert titles == [
        "TTFT, time to first token",
        "TPOT, time per output token",
        "Output tokens/s over time",
        "Requests of the naive run",
    ]
    # first token after 100 ms, then one each 20 ms
    assert [cell.text for cell in tables[0].rows[0]][2:7] == ["1 of 1", "100", "100", "100", "20.0"]


def test_no_answer_is_drawn_as_such() -> None:
    _, titles, tables = section_of((trace(0, "error", tokens=0), trace(1, "dropped", tokens=0)))
    assert titles == ["Output tokens/s over time", "Requests of the naive run"]
    row = tables[0].rows[0]
    assert row[2].text == "0 of 2"
    assert (row[3].text, row[3].note) == ("–", "no request completed")


def test_a_run_without_requests_is_not_drawn() -> None:
    lead, titles, _ = section_of(())
    assert titles == []
    assert lead == "Not drawn: the raw runs are not in the journal."


@pytest.mark.parametrize("count", [200, 5000])
def test_many_requests_stay_a_small_page(count: int) -> None:
    run = sample.make_run("baseline", sample.NAIVE)
    traces = tuple(trace(index, first_ms=50 + index % 997) for index in range(count))
    runs = {run.run_id: msgspec.structs.replace(run, traces=traces, end_ns=traces[-1].t_end_ns or 0)}
    section = latency_section(sample.sample_report(), runs)
    figures = [item for block in section.blocks if isinstance(block, Figures) for item in block.items]
    assert sum(len(figure.svg) for figure in figures) < 120_000
    waterfall = figures[-1]
    assert f"of {count} requests" in waterfall.caption


def test_tokens_over_time_are_all_counted() -> None:
    run = sample.make_run("baseline", sample.NAIVE)
    rates = token_rates(run, 0.5)
    assert sum(rates) * 0.5 == pytest.approx(sum(trace.output_tokens for trace in run.traces))
