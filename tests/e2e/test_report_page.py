"""The page in a real browser: no error, no request, no overflow, at two widths in two colour schemes."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerband.records.columns import Columns
from powerband.records.slo import parse_slo
from powerband.report.document import Document
from powerband.report.load_document import load_document
from powerband.report.loop_document import loop_document
from powerband.report.page import render_document
from tests.support import sample_report as sample
from tests.support.chromium import Chromium, find_chromium

# Labels of the same figure that cover each other; each pair must lie in the same drawing and be visible.
OVERLAPS = """
(() => {
  const found = [];
  for (const drawing of document.querySelectorAll("svg.plot")) {
    const boxes = [...drawing.querySelectorAll("text")]
      .map(t => [t.textContent, t.getBoundingClientRect()])
      .filter(([words, box]) => box.width > 0);
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [a, b] = [boxes[i][1], boxes[j][1]];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) found.push(boxes[i][0] + " / " + boxes[j][0]);
    }
  }
  return found;
})()
"""
# Elements that reach beyond the page and are not inside something that scrolls.
BEYOND = """
[...document.querySelectorAll("main *")]
  .filter(e => !e.closest(".scroll") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map(e => e.tagName + "." + e.className + ": " + e.textContent.slice(0, 40))
"""
COPY = """
new Promise(done => {
  const button = document.querySelector("#start button");
  button.click();
  setTimeout(() => done([button.hidden, button.textContent]), 200);
})
"""
BLOW_UP = """
document.querySelectorAll("svg text").forEach(t => { t.style.fontSize = "60px"; });
document.querySelectorAll("h2").forEach(h => { h.style.width = "900px"; });
"""
INJECT = """
new Promise(done => {
  const picture = new Image();
  picture.onerror = picture.onload = done;
  picture.src = "http://127.0.0.1:9/x";
})
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    binary = find_chromium()
    if binary is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    with Chromium(binary, tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files to open; POWERBAND_SCREENSHOTS names a folder to keep the pictures in."""
    runs = sample.sample_runs()
    reports = {
        "sample": render_document(loop_document(sample.sample_report(), runs)),
        "hostile": render_document(loop_document(sample.hostile_report(), runs)),
        "unverified": render_document(loop_document(sample.unverified_report(), {})),
        "zero": render_document(loop_document(sample.zero_baseline_report(), runs)),
        "load": render_document(sample_load()),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, html in reports.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in reports}


def sample_load() -> Document:
    """The page of one run of the load generator, of a run of the sample."""
    run = next(iter(sample.sample_runs().values()))
    return load_document(run, Columns(run.traces), parse_slo("ttft=500ms,tpot=50ms,e2e=2s"), ["a note"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["sample", "hostile", "unverified", "zero", "load"])
def test_the_page_opens_cleanly(
    chromium: Chromium, pages: dict[str, Path], tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    chromium.open(pages[name], width=width, dark=dark)
    assert chromium.errors() == []
    assert chromium.requests() == [pages[name].as_uri()]
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    assert chromium.evaluate(BEYOND) == []
    assert chromium.evaluate(OVERLAPS) == []
    folder = Path(os.environ.get("POWERBAND_SCREENSHOTS", tmp_path))
    picture = folder / f"report_{name}_{width}_{'dark' if dark else 'light'}.png"
    chromium.screenshot(picture)
    assert picture.stat().st_size > 20_000


def test_the_checks_can_fail(chromium: Chromium, pages: dict[str, Path]) -> None:
    """Letters blown up must be found as overlaps and as reaching beyond the page, a thrown error as an error."""
    chromium.open(pages["sample"], width=390, dark=False)
    chromium.evaluate(BLOW_UP)
    assert chromium.evaluate(OVERLAPS) != []
    assert chromium.evaluate(BEYOND) != []
    chromium.evaluate("console.error('planted') ?? 0")
    assert any("planted" in error for error in chromium.errors())


def test_light_and_dark_differ(chromium: Chromium, pages: dict[str, Path], tmp_path: Path) -> None:
    papers = set()
    for dark in (False, True):
        chromium.open(pages["sample"], width=1280, dark=dark)
        chromium.screenshot(tmp_path / "page.png")
        papers.add((hashlib.sha256((tmp_path / "page.png").read_bytes()).hexdigest(), dark))
        color = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
        assert color == ("rgb(16, 18, 20)" if dark else "rgb(255, 255, 255)")
    assert len({digest for digest, _ in papers}) == 2


def test_the_command_can_be_copied(chromium: Chromium, pages: dict[str, Path]) -> None:
    chromium.open(pages["sample"], width=1280, dark=False)
    hidden, words = chromium.evaluate(COPY)
    assert not hidden
    assert words in ("Copied", "Selected")
    command = chromium.evaluate('document.querySelector("#start pre").textContent')
    assert command == sample.sample_report().start_command


def test_an_injected_request_is_refused_by_the_page(chromium: Chromium, pages: dict[str, Path]) -> None:
    """The policy works: a picture that is put into the page by force does not reach the network."""
    chromium.open(pages["sample"], width=1280, dark=False)
    chromium.evaluate(INJECT)
    assert any("Content Security Policy" in error for error in chromium.errors())


def test_it_prints(chromium: Chromium, pages: dict[str, Path]) -> None:
    chromium.open(pages["sample"], width=1280, dark=True)
    pdf = chromium.print_pdf()
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 20_000
