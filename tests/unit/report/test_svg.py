"""Drawing: ticks by hand, laws by property, and nothing from outside that could become markup."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.report import plots, svg

HOSTILE = "<script>alert(1)</script>\"'&"


def parse(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<root>{markup}</root>")


@pytest.mark.parametrize(
    ("span", "count", "step"),
    [(10.0, 5, 2.0), (1.0, 4, 0.5), (37.0, 5, 10.0), (0.9, 5, 0.2), (100.0, 5, 20.0), (0.0, 5, 1.0)],
)
def test_steps_are_one_two_or_five(span: float, count: int, step: float) -> None:
    assert svg.nice_step(span, count) == pytest.approx(step)


def test_a_linear_axis_ends_at_round_values() -> None:
    axis = svg.linear_axis(0, 1.87, "x", str)
    assert (axis.low, axis.high) == (0, 2.0)
    assert axis.ticks == pytest.approx((0, 0.5, 1.0, 1.5, 2.0))
    assert axis.at(1.0) == 0.5


def test_a_log_axis_spaces_factors_evenly() -> None:
    axis = svg.log_axis(0.012, 7.2, "x", str)
    assert (axis.low, axis.high) == pytest.approx((0.01, 10.0))
    assert axis.ticks == pytest.approx((0.01, 0.1, 1.0, 10.0))
    assert axis.at(0.1) == pytest.approx(1 / 3)
    assert svg.log_axis(0.4, 1.9, "x", str).ticks == pytest.approx((0.2, 0.5, 1.0, 2.0))


@given(st.floats(1e-6, 1e6), st.floats(1.0, 1e6))
def test_axes_hold_their_data_and_have_few_ticks(low: float, factor: float) -> None:
    for axis in (svg.log_axis(low, low * factor, "x", str), svg.linear_axis(0, low * factor, "x", str)):
        assert axis.low <= low * (1 + 1e-6)
        assert axis.high >= low * factor * (1 - 1e-6)
        assert 2 <= len(axis.ticks) <= 8
        places = [axis.at(tick) for tick in axis.ticks]
        assert places == sorted(places)


def test_text_and_attributes_are_escaped() -> None:
    markup = svg.titled(HOSTILE, svg.text(HOSTILE, class_=HOSTILE))
    root = parse(markup)
    assert [child.tag for child in root.iter()] == ["root", "g", "title", "text"]
    assert root.findtext("g/title") == HOSTILE
    assert root.find("g/text") is not None
    assert root.findtext("g/text") == HOSTILE


def test_a_distribution_counts_requests_that_never_got_there() -> None:
    line = plots.Curve("naive", (0.1, 0.2, 0.4), of=4)
    drawn = plots.distribution_plot("TTFT", [line], (0.3, "SLO 300 ms"), "time")
    assert drawn is not None
    path = next(element.get("d") or "" for element in parse(drawn).iter("path"))
    heights = [float(y) for y in re.findall(r"V([0-9.]+)", path)]
    # 3 of 4 requests have a value: the curve rises by a quarter each and ends at 75 %.
    assert heights == [plots.PLOT_HEIGHT * part for part in (0.75, 0.5, 0.25)]


def test_a_distribution_of_nothing_is_not_drawn() -> None:
    assert plots.distribution_plot("TTFT", [plots.Curve("naive", (), of=3)], None, "time") is None
    assert plots.estimates_plot("t", [], None, "x") is None


def test_a_value_that_is_missing_is_a_gap_in_the_line() -> None:
    """Four bins of a second, of 1, 2, nothing and 1: the axis ends at 4 s and 2, the line stops at 2 s."""
    drawn = plots.rate_plot("t", [("chosen", [1.0, 2.0, math.nan, 1.0])], 1.0, "x")
    path = next(element.get("d") or "" for element in parse(drawn).iter("path"))
    assert path == "M0.0 110.0H250.0V0.0H500.0M750.0 110.0H1000.0"


def test_the_parts_of_a_bar_cover_its_whole() -> None:
    parts = [plots.Part(str(size), size, "c1", f"part {size}") for size in (1.0, 2.0, 5.0)]
    rects = list(parse(plots.stacked_bar("bar", parts)).iter("rect"))
    widths = [float((rect.get("width") or "").removesuffix("%")) for rect in rects]
    assert widths == [12.5, 25, 62.5]
    assert [rect.get("x") for rect in rects] == ["0%", "12.5%", "37.5%"]


def test_a_ratio_lies_right_of_the_line_when_better() -> None:
    mark = parse(plots.ratio_mark(2.0, 1.5, 2.5, 4.0, "good", "x"))
    circle = mark.find("svg/circle")
    assert circle is not None
    # log 2 / log 4 is half of the way from the middle to the right end
    assert circle.get("cx") == "75%"


@given(st.floats(0.01, 100), st.floats(1.0, 3.0))
def test_a_ratio_never_leaves_its_strip(value: float, spread: float) -> None:
    mark = parse(plots.ratio_mark(value, value / spread, value * spread, 2.0, "good", "x"))
    for element in mark.iter():
        for name in ("cx", "x1", "x2"):
            if (place := element.get(name)) is not None:
                assert 0 <= float(place.removesuffix("%")) <= 100
                assert math.isfinite(float(place.removesuffix("%")))
