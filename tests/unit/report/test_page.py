"""The page says what the records say, needs nothing else, and does not run what it shows."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import pytest

from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.records.verdict import QualityResult
from powerband.report.loop_document import loop_document
from powerband.report.page import render_document
from tests.support import sample_report as sample


class Page(HTMLParser):
    """Elements with their attributes, and the text of each table cell and of the whole."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.inline: dict[str, str] = {}
        self._open: str | None = None
        self._in_cell = False
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag if tag in ("style", "script") else None
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._open = None
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.inline[self._open] = self.inline.get(self._open, "") + data
            return
        self.words.append(data)
        if self._in_cell:
            self.rows[-1][-1] += data

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return sample.sample_runs()


@pytest.fixture(scope="module")
def html(runs: dict[str, Run]) -> str:
    return render_document(loop_document(sample.sample_report(), runs))


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_answer_comes_first(page: Page) -> None:
    start = page.text[:900]
    assert "4.2× goodput at the same traffic [3.6, 4.9]" in start
    assert "From 0.444 requests/s to 1.87 requests/s; the interval is at 90 %." in start
    assert "3 repeats a side (1 more left out); noise floor ±4.3 %; smallest effect that counts 3.0 %." in start


def test_sections_follow_in_reading_order(page: Page) -> None:
    ids = [attributes["id"] for attributes in page.tags("section") if "id" in attributes]
    assert ids == [
        "compare",
        "start",
        "memory",
        "time",
        "rounds",
        "latency",
        "trials",
        "traffic",
        "provenance",
        "limits",
    ]


@pytest.mark.parametrize(
    "row",
    [
        ["Goodput, requests/s", "0.444", "1.87", "4.2×[3.6, 4.9]"],
        ["SLO attainment", "24.6 %", "97.9 %", "4.0×[3.4, 4.6]"],
        ["TTFT p50, ms", "3,082", "108", "0.035×[0.031, 0.041]"],
        ["TPOT p99, ms", "9.52", "40.3", "4.2×[4.1, 4.4]"],
        ["KV cache", "360.00 MiB", "4.5 %", "computed"],
        ["queueing", "3.01", "82.9 %", "0.03", "1.4 %"],
        ["window", "46.80", "100.0 %", "42.40", "100.0 %"],
    ],
)
def test_the_numbers_of_the_records_are_in_the_tables(page: Page, row: list[str]) -> None:
    assert any(found[: len(row)] == row for found in page.rows)


def test_every_run_and_every_trial_is_there(page: Page, runs: dict[str, Run]) -> None:
    first_cells = {row[0] for row in page.rows if row}
    assert set(runs) <= first_cells
    numbers = {str(trial.n) for trial in sample.sample_report().trials}
    assert numbers <= {cell.removesuffix("best") for cell in first_cells}


@pytest.mark.parametrize(
    "cause",
    [
        "the KV cache alone needs 2.81 GiB more",
        "the engine died at start, exit code 134",
        "other processes used 1.4 of 2 cores for 31 s",
    ],
)
def test_trials_that_cannot_be_used_say_why(page: Page, cause: str) -> None:
    assert any(cause in cell for row in page.rows for cell in row)


def test_shares_of_each_breakdown_sum_to_a_hundred(page: Page) -> None:
    heads = [index for index, row in enumerate(page.rows) if row[0] == "Part"]
    assert len(heads) == 2
    for head in heads:
        body = page.rows[head + 1 :]
        parts = body[: next(i for i, row in enumerate(body) if row[0] in ("request", "window"))]
        for column in (2, 4):
            shares = [row[column] for row in parts if row[column] != "–"]
            assert sum(round(float(share.removesuffix(" %")) * 10) for share in shares) == 1000


def test_time_that_no_part_explains_is_named(runs: dict[str, Run]) -> None:
    report = sample.sample_report()
    cut = msgspec.structs.replace(report.diagnosis_before, breakdown=report.diagnosis_before.breakdown[1:])
    page = Page(render_document(loop_document(msgspec.structs.replace(report, diagnosis_before=cut), runs)))
    assert any(row[:3] == ["not accounted for", "11.20", "23.9 %"] for row in page.rows)


def test_prediction_and_measurement_stand_side_by_side(page: Page) -> None:
    first = next(row for row in page.rows if row[:2] == ["1", "no batching"])
    assert first[4:6] == ["1.55[1.20, 1.85]simulated", "1.90outside the interval"]
    assert "2 of 3 measurements lie inside their predicted 90 % interval." in page.text


def test_nothing_is_asked_of_a_network(html: str, page: Page) -> None:
    loads = [
        (tag, name, value)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}
    ]
    assert {value[0] for _, _, value in loads if value} == {"#", "d"}  # anchors, and the empty icon
    assert [value for tag, _, value in loads if tag == "link"] == ["data:,"]
    assert not re.search(r"@import|url\(", page.inline["style"])
    assert not re.search(r"fetch|XMLHttpRequest|WebSocket|import\(", page.inline["script"])


def test_the_policy_names_exactly_the_style_and_script_that_are_there(page: Page) -> None:
    policy = next(a["content"] for a in page.tags("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.inline[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert len(page.tags(kind)) == 1
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


@pytest.mark.parametrize("report", [sample.sample_report(), sample.hostile_report()], ids=["sample", "hostile"])
def test_text_from_outside_stays_text(report: LoopReport, runs: dict[str, Run]) -> None:
    html = render_document(loop_document(report, runs))
    page = Page(html)
    assert "<script>alert(1)</script>" in page.text
    assert len(page.tags("script")) == 1
    assert page.tags("img") == []
    assert not any(name.startswith("on") or name == "style" for _, a in page.elements for name in a)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", html)


def test_a_loop_without_a_verdict_claims_nothing() -> None:
    page = Page(render_document(loop_document(sample.unverified_report(), {})))
    assert "0 → 1.87 goodput at the same traffic" in page.text
    assert "One run each (trials 1 and 4), so no interval: not recommended until verified." in page.text
    assert "Not accounted: the model or the device of this server is not known here." in page.text
    assert "Not drawn: the raw runs are not in the journal." in page.text
    assert ["Goodput, requests/s", "0", "1.87", "no ratiothe baseline is 0"] in page.rows
    assert ["keep"] not in [words.split() for words in page.words]


def test_a_baseline_of_zero_has_no_ratio(runs: dict[str, Run]) -> None:
    page = Page(render_document(loop_document(sample.zero_baseline_report(), runs)))
    assert "0 → 1.87 goodput at the same traffic" in page.text
    goodput = next(row for row in page.rows if row[0] == "Goodput, requests/s")
    assert goodput[3] == "no ratiofrom 0: a ratio to nothing has no size"
    attainment = next(row for row in page.rows if row[0] == "SLO attainment")
    assert attainment[3:] == ["4.27×no interval", "", "trials 1, 4: one run each"]


def test_nothing_found_is_said_so(runs: dict[str, Run]) -> None:
    report = msgspec.structs.replace(sample.sample_report(), verdict=None, chosen=None, best_trial=None, rounds=())
    text = Page(render_document(loop_document(report, runs))).text
    assert "nothing better than the baseline was found" in text
    assert "No round was made." in text


def test_where_one_config_ran_the_answer_is_what_limits_it(runs: dict[str, Run]) -> None:
    full = sample.sample_report()
    bare = {"verdict": None, "chosen": None, "best_trial": None, "rounds": (), "trials": full.trials[:1]}
    text = Page(render_document(loop_document(msgspec.structs.replace(full, **bare), runs))).text
    assert re.search(r"No batching is its limit, [0-9.]+ % of request time", text)


def test_a_run_with_nothing_but_requests_says_what_is_missing(runs: dict[str, Run]) -> None:
    bare = {run_id: sample.bare_run(run) for run_id, run in runs.items()}
    page = Page(render_document(loop_document(sample.sample_report(), bare)))
    row = next(row for row in page.rows if row[0] == f"{sample.SESSION}.baseline")
    assert row[4:] == ["not measuredthe engine has no such endpoint"] * 4


def test_no_slo_leaves_no_goodput_column(runs: dict[str, Run]) -> None:
    report = sample.sample_report()
    trials = tuple(
        msgspec.structs.replace(trial, measured=runs[trial.run_id].metrics() if trial.run_id else None)
        for trial in report.trials
    )
    plain = msgspec.structs.replace(report, slo=None, objective="output_tokens_per_s", verdict=None, trials=trials)
    page = Page(render_document(loop_document(plain, runs)))
    heads = next(row for row in page.rows if row[0] == "Trial")
    assert heads[:6] == ["Trial", "For", "Settings", "Status", "Output tok/s", "TTFT p50, ms"]
    assert ["Goodput, requests/s", "not measuredno SLO was set"] in [row[:2] for row in page.rows]


def test_every_figure_and_table_has_a_name(page: Page) -> None:
    for attributes in page.tags("svg"):
        assert attributes.get("role") == "img" or attributes.get("class") == "stretched"
    assert len(page.tags("caption")) == len(page.tags("table"))
    assert all(attributes.get("scope") == "col" for attributes in page.tags("th"))


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_dark(page: Page) -> None:
    blocks = re.findall(r":root \{(.*?)\}", page.inline["style"], re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks[:2])
    for scheme in (light, dark):
        for ink, paper in (
            ("ink", "paper"),
            ("muted", "paper"),
            ("accent", "paper"),
            ("warn", "paper"),
            ("muted", "soft"),
            ("ink", "soft"),
            ("accent", "accent-soft"),
            ("warn", "warn-soft"),
        ):
            assert contrast(scheme[ink], scheme[paper]) >= 4.5, (ink, paper)
        for line in ("naive", "accent"):
            assert contrast(scheme[line], scheme["paper"]) >= 3.0, line


def test_quality_figures_and_gpu_use_are_told_where_they_exist(runs: dict[str, Run]) -> None:
    report = sample.sample_report()
    assert report.verdict is not None
    quality = QualityResult(verdict="passed", reason="within 2 %", perplexity_ratio=1.0123, agreement=0.981)
    report = msgspec.structs.replace(
        report,
        verdict=msgspec.structs.replace(report.verdict, quality=quality),
        diagnosis_before=msgspec.structs.replace(report.diagnosis_before, gpu_busy_ratio=0.0792),
    )
    text = Page(render_document(loop_document(report, runs))).text
    assert "Quality passed (perplexity ratio 1.01, agreement 0.981): within 2 %." in text
    assert "the GPU was busy 7.9 % of the window" in text
