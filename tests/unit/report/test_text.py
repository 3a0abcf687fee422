"""Terminal tables: plain where nobody reads them, as wide as asked, and literal about what they show."""

import io
import re

import msgspec
import pytest

from powerband.cli.options import terminal
from powerband.records.columns import compute_metrics
from powerband.records.run import ClientCheck
from powerband.records.value import Missing
from powerband.report import text
from powerband.report.loop_document import loop_document
from powerband.report.markdown import draw_markdown
from powerband.report.page import render_document
from tests.support import sample_report as sample

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    report = sample.sample_report()
    run = sample.make_run("tune-3", sample.CHOSEN)
    return {
        "loop": text.render_loop(report, page=".powerband/report.html"),
        "metrics": text.render_metrics(run.metrics(sample.SLO), sample.SLO, run.client),
        "comparison": text.render_comparison(sample.sample_verdict()),
        "trials": text.render_trials(report.trials),
        "journal": text.render_journal([{"run": "a", "trials": 4, "gain": 4.214}, {"run": "[red]b", "trials": None}]),
    }


def test_the_loop_ends_with_answer_table_command_and_page(rendered: dict[str, str]) -> None:
    lines = rendered["loop"].splitlines()
    assert lines[0] == "4.2× goodput at the same traffic [3.6, 4.9], keep"
    assert any(re.match(r"Naive: [a-z ]+, [0-9.]+ % of .+ \((suspected|confirmed)\): ", line) for line in lines[:14])
    row = next(line for line in lines if "TTFT p99" in line)
    assert row.split() == ["TTFT", "p99,", "ms", "5,113", "170", "0.033×", "[0.029,", "0.038]", "better"]
    assert f"  {sample.sample_report().start_command}" in lines  # one line, to be copied
    assert lines[-1] == "Report: .powerband/report.html"


def test_metrics_tell_rates_latencies_and_the_promise(rendered: dict[str, str]) -> None:
    shown = rendered["metrics"]
    assert "94 of 96 requests completed" in shown
    assert "2 errors, 0 dropped (measured)" in shown
    assert "attainment 97.9 %, met" in shown
    assert "Load generator ok" in shown


def test_a_limited_client_is_said_loudly_and_missing_values_say_why() -> None:
    check = ClientCheck(
        verdict="limited",
        reason="sent 40 ms late at p99",
        schedule_delay_s=Missing(missing="x"),
        loop_lag_s=Missing(missing="x"),
        cpu_ratio=1.0,
    )
    shown = text.render_metrics(compute_metrics([]), None, check)
    assert "client-limited, do not use these numbers: sent 40 ms late at p99" in shown
    assert "no request completed" in shown
    assert "No SLO was set" in shown


def test_every_trial_has_a_row_and_bad_ones_a_cause(rendered: dict[str, str]) -> None:
    shown = rendered["trials"]
    for n in range(1, 14):
        assert re.search(rf"^ +{n}   ", shown, re.MULTILINE)
    assert "Trial 3 pruned: does not fit" in shown
    assert "Trial 6 failed: the engine died at start" in shown
    assert "Trial 7 contended: other processes" in shown


def test_nothing_to_list() -> None:
    assert text.render_trials([]) == "No trial was made.\n"
    assert text.render_journal([]) == "The journal is empty.\n"


def test_markup_in_names_is_shown_and_not_obeyed(rendered: dict[str, str]) -> None:
    assert "[red]ggml_abort[/red]" in rendered["trials"]
    assert "[red]b" in rendered["journal"]
    report = sample.hostile_report()
    assert sample.HOSTILE in text.render_loop(report)
    assert "\x1b" not in text.render_loop(report)


def test_plain_text_has_no_escape_sequence_and_colour_has(
    monkeypatch: pytest.MonkeyPatch, rendered: dict[str, str]
) -> None:
    assert not any("\x1b" in shown for shown in rendered.values())
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = text.render_loop(sample.sample_report(), color=True)
    assert ESCAPE.search(coloured)
    stripped = [ESCAPE.sub("", line).rstrip() for line in coloured.splitlines()]
    assert stripped == text.render_loop(sample.sample_report()).splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_lines_keep_to_the_width(width: int) -> None:
    report = sample.sample_report()
    command = f"  {report.start_command}"
    shown = text.render_loop(report, width=width) + text.render_trials(report.trials, width=width)
    shown += text.render_comparison(sample.sample_verdict(), width=width)
    assert max(len(line) for line in shown.splitlines() if line != command) <= width


def test_an_attached_server_without_a_verdict() -> None:
    shown = text.render_loop(sample.unverified_report())
    assert shown.startswith("0 → 1.87 goodput at the same traffic (one run each), not verified\n")


def test_runs_without_an_slo_have_no_goodput_column() -> None:
    trial = sample.sample_report().trials[0]
    run = sample.make_run("baseline", sample.NAIVE)
    shown = text.render_trials([msgspec.structs.replace(trial, measured=run.metrics())])
    assert "Goodput" not in shown
    assert "tok/s" in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_needs_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "93")
    monkeypatch.setattr("sys.stdout", Terminal())
    assert terminal() == {"width": 93, "color": True}
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal() == {"width": 93, "color": False}
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert terminal() == {"width": 120, "color": False}


def test_a_kept_result_that_misses_the_promise_says_so_on_screen_page_and_in_markdown() -> None:
    """97.9 % of the requests keep limits that 99 % were promised; at 95 % nothing more is said."""
    made = sample.sample_report()
    report = msgspec.structs.replace(made, slo=msgspec.structs.replace(sample.SLO, attainment=0.99))
    said = (
        "4.2× goodput at the same traffic [3.6, 4.9], keep; "
        "the promise is still missed: 97.9 % of the requests, 99 % promised"
    )
    assert text.render_loop(report, width=160).splitlines()[0] == said
    document = loop_document(report, sample.sample_runs())
    assert f"**{said}**" in draw_markdown(document)
    assert (
        "the promise is still missed: 97.9 % of the requests, 99 % promised"
        in render_document(document).split("<nav")[0]
    )
    assert "still missed" not in text.render_loop(made, width=160)
