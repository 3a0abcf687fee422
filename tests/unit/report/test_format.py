"""Numbers as people read them: expected texts are written by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.records.columns import compute_metrics
from powerband.records.config import EngineConfig
from powerband.records.slo import Slo
from powerband.records.value import Interval, Missing
from powerband.report import format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.56, "1,235"),
        (15910.0, "15,910"),
        (123.4, "123"),
        (99.96, "100"),
        (9.996, "10.0"),
        (0.99951, "1.00"),
        (0.012345, "0.0123"),
        (-3.14159, "-3.14"),
        (math.inf, "not finite"),
        (math.nan, "not finite"),
    ],
)
def test_significant(value: float, text: str) -> None:
    assert fmt.significant(value) == text


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_significant_stays_within_half_a_unit_of_the_third_digit(value: float) -> None:
    shown = float(fmt.significant(value).replace(",", ""))
    assert abs(shown - value) <= 0.0051 * value


@given(st.lists(st.integers(min_value=0, max_value=10**9), min_size=1, max_size=12).filter(any))
def test_percents_sum_to_exactly_a_hundred(parts: list[int]) -> None:
    shares = [part / sum(parts) for part in parts]
    shown = [round(float(text.removesuffix(" %")) * 10) for text in fmt.percents(shares)]
    assert sum(shown) == 1000
    assert all(abs(tenths / 1000 - share) < 0.001 for tenths, share in zip(shown, shares, strict=True))


def test_thirds_are_not_rounded_away() -> None:
    assert fmt.percents([1 / 3, 1 / 3, 1 / 3]) == ["33.4 %", "33.3 %", "33.3 %"]


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (4.2, 3.6, 4.9, "4.2× [3.6, 4.9]"),
        (1.031, 0.982, 1.077, "1.03× [0.98, 1.08]"),
        (12.34, 8.1, 17.9, "12× [8, 18]"),
        (0.0351, 0.031, 0.041, "0.035× [0.031, 0.041]"),
    ],
)
def test_a_ratio_has_no_more_digits_than_its_interval_bears(value: float, low: float, high: float, text: str) -> None:
    interval = Interval(low=low, high=high)
    assert f"{fmt.ratio(value, interval)} {fmt.ratio_interval(interval)}" == text


def test_a_ratio_without_an_interval_has_three_digits() -> None:
    assert fmt.ratio(0.03361) == "0.0336×"
    assert fmt.ratio(4.15) == "4.15×"


def test_both_sides_of_a_row_take_one_unit() -> None:
    assert fmt.row_label("ttft_p50_s", 3.62, 0.0481) == "TTFT p50, ms"
    assert fmt.row_value("ttft_p50_s", 3.62, 3.62, 0.0481) == "3,620"
    assert fmt.row_value("ttft_p50_s", 0.0481, 3.62, 0.0481) == "48.1"
    assert fmt.row_label("ttft_p99_s", 12.0, 3.0) == "TTFT p99, s"
    assert fmt.row_value("ttft_p99_s", 12.0, 12.0, 3.0) == "12.0"
    assert fmt.row_label("goodput_per_s", 0.5, 2.0) == "Goodput, requests/s"
    assert fmt.row_value("attainment", 0.958) == "95.8 %"


def test_control_and_direction_characters_become_visible() -> None:
    assert fmt.clean("a\x1b[31mb\u202ec\x00\r\nd\te\ud800") == "a\\x1b[31mb\\u202ec\\x00\nd\te\\ud800"
    assert fmt.clean("Überlast 4×, 模型") == "Überlast 4×, 模型"


def test_one_line_is_cut_with_a_mark() -> None:
    assert fmt.one_line(" a\n b\tc ") == "a b c"
    assert fmt.one_line("abcdef", 4) == "abc…"


def test_a_timestamp_is_told_in_utc() -> None:
    assert fmt.timestamp("2026-11-03T14:03:41+02:00") == "2026-11-03 12:03:41 UTC"
    assert fmt.timestamp("yesterday") == "yesterday"
    assert fmt.timestamp("2026-11-03T14:03:41") == "2026-11-03T14:03:41"  # no zone: not ours to guess


def test_a_metric_that_is_not_there_says_why() -> None:
    metrics = compute_metrics([])
    assert fmt.value_of(metrics, "goodput_per_s") == Missing(missing="no SLO was set")
    assert fmt.value_of(metrics, "ttft_p99_s") == Missing(missing="no request completed")
    assert fmt.value_of(metrics, "speed") == Missing(missing="the run has no metric speed")
    assert fmt.value_of(metrics, "output_tokens_per_s") == 0.0


def test_settings_are_told_from_a_base() -> None:
    base = EngineConfig(engine="llamacpp", model="m", knobs={"n_parallel": 1, "flash_attn": True, "old": 3})
    other = EngineConfig(engine="llamacpp", model="m", knobs={"n_parallel": 8, "flash_attn": True})
    assert fmt.config_text(other) == "n_parallel=8, flash_attn=on"
    assert fmt.config_text(other, base) == "n_parallel=8, old left to the engine"
    assert fmt.config_text(base, base) == "as the baseline"


def test_an_slo_in_words() -> None:
    assert fmt.slo_text(Slo(ttft_s=0.5, tpot_s=0.05)) == "TTFT ≤ 500 ms, TPOT ≤ 50 ms (target attainment 95 %)"
    assert fmt.slo_text(None) == "no SLO was set"
