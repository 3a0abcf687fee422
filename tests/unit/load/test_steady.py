"""Stop rules, warm-up, drift and two runs side by side, on traces made by hand."""

import math
import random

import numpy as np
import pytest

from powerband.load import stop_rules
from powerband.load.steady import drift, side_by_side
from powerband.load.stop_rules import Cells, Stop, StopRules, is_saturated, relative_width
from powerband.load.target import Progress
from powerband.records.columns import Columns
from powerband.records.request import RequestTrace

MS = 1_000_000


def trace(index: int, ttft_ms: float, tpot_ms: float = 10.0) -> RequestTrace:
    due, first = index * 100 * MS, index * 100 * MS + round(ttft_ms * MS)
    chunks = (first, first + round(tpot_ms * MS), first + 2 * round(tpot_ms * MS))
    return RequestTrace(
        index=index, status="ok", input_tokens=5, output_tokens_asked=3, t_sched_ns=due, t_send_ns=due,
        t_end_ns=chunks[-1], t_chunks_ns=chunks, chunk_tokens=(1, 1, 1),
    )  # fmt: skip


def state(**fields: object) -> Progress:
    plain = {"elapsed_s": 1.0, "planned": 9, "sent": 9, "completed": 9, "errors": 0, "in_flight": 0, "output_tokens": 0}
    return Progress(**{**plain, "ttft_s": None, "tpot_s": None, "left_s": None, **fields})  # type: ignore[arg-type]


def noisy(count: int, seed: int, slope_ms: float = 0.0) -> list[RequestTrace]:
    dice = random.Random(seed)
    return [trace(n, 100 + dice.gauss(0, 15) + slope_ms * n / count) for n in range(count)]


def test_a_drift_is_found_and_noise_is_not() -> None:
    """100 runs without a trend raise at most 5 warnings (2 metrics at 1 % each); a trend of 50 % is always seen."""
    assert sum(drift(Columns(noisy(200, seed))) is not None for seed in range(100)) <= 5
    found = drift(Columns(noisy(200, 7, slope_ms=50.0)))
    assert found is not None
    assert "TTFT went from" in found
    assert drift(Columns(noisy(40, 7, slope_ms=500.0))) is None  # too few to say


def test_the_order_of_the_records_does_not_matter_to_a_drift() -> None:
    traces = noisy(200, 7, slope_ms=50.0)
    assert drift(Columns(reversed(traces))) == drift(Columns(traces))


def test_many_values_in_few_cells_have_the_width_of_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """640 values in cells of 16 (limit 80): batches of 64 either way."""
    monkeypatch.setattr(stop_rules, "_MOST_CELLS", 80)
    monkeypatch.setattr(stop_rules, "_LEAST_TRACES", 40)
    values = gauss(3, 640)
    cells = Cells()
    cells.add(values[:77])
    cells.add(values[77:])
    assert len(cells.means) == 40
    assert cells.means[0] == pytest.approx(sum(values[:16]) / 16)
    assert relative_width(cells.means) == pytest.approx(relative_width(values))


def test_the_width_of_a_mean_shrinks_with_the_root_of_the_count() -> None:
    """Independent values, sigma/mean = 0.15: the half-width is about 1.645 * 0.15 / sqrt(n)."""
    widths = [relative_width(gauss(seed, 1000)) for seed in range(60)]
    assert np.median(widths) == pytest.approx(1.645 * 0.15 / math.sqrt(1000), rel=0.25)
    assert relative_width(gauss(1, 99)) == math.inf


def gauss(seed: int, count: int) -> list[float]:
    dice = random.Random(seed)
    return [dice.gauss(100, 15) for _ in range(count)]


def test_a_precise_run_stops_and_says_how_precise() -> None:
    rules = StopRules(Stop(precision=0.05), open_loop=True)
    assert rules.check(state(), noisy(60, 0)) is None
    assert rules.check(state(), noisy(60, 1)) == "precise_enough"
    assert "within" in rules.why


def test_errors_are_counted_against_their_limit() -> None:
    rules = StopRules(Stop(max_errors=5), open_loop=True)
    assert rules.check(state(errors=4), []) is None
    assert rules.check(state(errors=5), []) == "too_many_errors"


@pytest.mark.parametrize(
    ("backlog", "saturated"),
    [
        ([20 * n for n in range(36)], True),
        ([5] * 36, False),
        ([min(20 * n, 200) for n in range(36)], False),
        ([20 * n for n in range(35)], False),
        ([300 - 8 * n for n in range(36)], False),
        ([20 + (n % 9) * 10 for n in range(36)], False),
    ],
    ids=["grows", "flat", "settles", "short", "falls", "waves"],
)
def test_saturation_is_growth_without_bound(backlog: list[int], saturated: bool) -> None:
    assert is_saturated(backlog) is saturated
    rules = StopRules(Stop(when_saturated=True), open_loop=True)
    assert ([rules.check(state(in_flight=n), []) for n in backlog][-1] == "saturated") is saturated


def test_a_stable_random_queue_is_hardly_ever_called_saturated() -> None:
    """M/M/1 at 90 % load: backlogs of a queue that has a limit, sampled once a second at 20 requests/s."""
    false = 0
    for seed in range(60):
        dice, waiting, samples = random.Random(seed), 0, []
        for _ in range(120):
            for _ in range(20):
                waiting = max(0, waiting + (dice.random() < 0.45) - (dice.random() < 0.5))
            samples.append(waiting)
            if is_saturated(samples):
                false += 1
                break
    assert false <= 3


def test_equal_runs_side_by_side_hold_one_in_nine_of_ten() -> None:
    """Of other schedules, and of one schedule sent twice: 54 of 60 expected, below 48 in under 1 % of draws."""
    for shift in (0, 1):
        held = 0
        for seed in range(60):
            after = noisy(200 + shift, seed + 1000)
            row = side_by_side(Columns(noisy(200, seed)), Columns(after), (0, 0))[0]
            assert row.interval is not None
            assert row.paired is (shift == 0)
            held += row.interval.low <= 1 <= row.interval.high
        assert held >= 48


def test_what_the_schedule_does_to_both_runs_is_no_noise() -> None:
    """A queue that comes and goes with the schedule, 0 to 400 ms, and noise of 5 ms: the interval is the noise's.

    Of 200 requests in ten batches: half-width near 1.833 * 5 * sqrt(2) / sqrt(200) / 300, 0.3 %.
    """
    dice = random.Random(3)
    queue = [200 + 200 * math.sin(n / 30) for n in range(200)]
    before, after = (Columns(trace(n, 100 + wait + dice.gauss(0, 5)) for n, wait in enumerate(queue)) for _ in range(2))
    row = side_by_side(before, after, (0, 0))[0]
    assert row.interval is not None
    assert math.log(row.interval.high / row.interval.low) / 2 == pytest.approx(0.003, rel=0.6)
    assert row.ratio == pytest.approx(1.0, abs=0.01)


def test_side_by_side_reads_means_by_hand() -> None:
    before, after = Columns([trace(0, 100), trace(1, 300)]), Columns([trace(0, 100), trace(1, 100, 20.0)])
    rows = side_by_side(before, after, (0, 0))
    by_name = {row.name: row for row in rows}
    assert by_name["ttft_s"].before == pytest.approx(0.2)
    assert by_name["ttft_s"].ratio == pytest.approx(0.5)
    assert by_name["tpot_s"].ratio == pytest.approx(1.5)
    assert by_name["ttft_s"].interval is None
