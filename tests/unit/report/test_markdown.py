"""Markdown for a pull request: the page's content, and nothing in it that renders as more than text."""

import re

import pytest

from powerband.records.run import Run
from powerband.report.loop_document import loop_document
from powerband.report.markdown import code_span, draw_markdown, escape, fenced
from tests.support import sample_report as sample


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return sample.sample_runs()


@pytest.fixture(scope="module")
def text(runs: dict[str, Run]) -> str:
    return draw_markdown(loop_document(sample.sample_report(), runs))


def test_it_says_what_the_page_says(text: str, runs: dict[str, Run]) -> None:
    assert "**4.2× goodput at the same traffic [3.6, 4.9], keep**" in text
    assert "| Goodput, requests/s | 0.444 | 1.87 | 4.2× [3.6, 4.9] | better |" in text
    assert f"```sh\n{sample.sample_report().start_command}\n```" in text
    assert all(f"`{run_id}`" in text for run_id in runs)
    assert "2 of 3 measurements lie inside their predicted 90 % interval." in text


def test_every_row_has_as_many_cells_as_its_head(text: str) -> None:
    width = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line


@pytest.mark.parametrize("make", [sample.sample_report, sample.hostile_report, sample.unverified_report])
def test_no_tag_comes_from_outside(make: object, runs: dict[str, Run]) -> None:
    assert callable(make)
    text = draw_markdown(loop_document(make(), runs))
    outside_code = re.sub(r"(`{3,})sh\n.*?\n\1", "", text, flags=re.DOTALL)
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", outside_code)
    assert set(re.findall(r"<[^>]*>", outside_code)) <= {
        "<details>",
        "<summary>",
        "</summary>",
        "</details>",
        "<!-- -->",
    }
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("a_b *c* [x](http://e)", r"a_b \*c\* [x\](http://e)"),
        ("_x_ and `y` | z", r"\_x\_ and \`y\` \| z"),
        ("<b>&", "&lt;b>&amp;"),
        ("1 -> 2 > 0", "1 -> 2 > 0"),
        ("> quoted", r"\> quoted"),
        (">quoted", r"\>quoted"),
        ("ask @team about #12, not a@b.c", "ask @<!-- -->team about #<!-- -->12, not a@b.c"),
        ("# title", r"\# title"),
        ("1. one\ntwo", r"\1. one two"),
        ("[3.6, 4.9]", "[3.6, 4.9]"),
    ],
)
def test_escape(raw: str, safe: str) -> None:
    assert escape(raw) == safe


def test_code_keeps_its_backticks_and_bars() -> None:
    assert code_span("a|b") == r"`a\|b`"
    assert code_span("a``b") == "```a``b```"
    assert code_span("`a") == "`` `a ``"
    assert fenced("x ```` y") == ["`````sh", "x ```` y", "`````"]
