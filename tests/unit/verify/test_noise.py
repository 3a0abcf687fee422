"""Noise, quantiles, warm-up and the quality gate, against tables and hand arithmetic."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from powerband.records.config import EngineConfig, Knob
from powerband.records.run import Run
from powerband.verify.noise import Spread, noise_floor, pool_spread
from powerband.verify.quality import need_quality
from powerband.verify.steady import assess, find_warm_up, measure_drift
from powerband.verify.student import t_quantile

# Two-sided 90 % and 99 % points from a printed t table.
T_TABLE: dict[tuple[float, float], float] = {
    (0.9, 1): 6.314,
    (0.9, 2): 2.920,
    (0.9, 4): 2.132,
    (0.9, 10): 1.812,
    (0.9, 30): 1.697,
    (0.99, 8): 3.355,
}


@pytest.mark.parametrize(("level", "df"), T_TABLE)
def test_t_quantiles_agree_with_the_table(level: float, df: float) -> None:
    assert t_quantile(level, df) == pytest.approx(T_TABLE[level, df], abs=0.001)


def test_t_tends_to_the_normal_distribution() -> None:
    assert t_quantile(0.9, 1e9) == pytest.approx(1.6449, abs=0.001)
    assert t_quantile(0.9, 0.2) == pytest.approx(6.314, abs=0.01)


def test_spread_pools_the_repeats_of_several_levels() -> None:
    # Deviations: 100 -> -+10 % twice, 10 -> -+20 % twice: (2 * 0.01 + 2 * 0.04) / 2 degrees of freedom.
    spread = pool_spread([[90.0, 110.0], [8.0, 12.0], [5.0]])
    assert spread is not None
    assert spread.df == 2
    assert spread.relative_sd == pytest.approx(math.sqrt(0.05))
    assert pool_spread([[1.0], [2.0]]) is None
    assert pool_spread([[0.0, 0.0]]) is None


def test_noise_floor_is_the_half_width_of_an_equal_comparison() -> None:
    floor = noise_floor(Spread(relative_sd=0.02, df=4), 3, 3)
    assert floor == pytest.approx(math.exp(2.132 * 0.02 * math.sqrt(2 / 3)) - 1, rel=1e-3)
    assert noise_floor(None, 3, 3) is None


def test_warm_up_is_cut_where_the_level_changes() -> None:
    dice = random.Random(3)
    series = np.array([dice.gauss(5.0, 0.1) for _ in range(30)] + [dice.gauss(1.0, 0.1) for _ in range(170)])
    assert find_warm_up(series) in (30, 35)  # to a batch of five
    assert (find_warm_up(series[30:]) or 0) <= 85
    assert find_warm_up(np.ones(3)) == 0


def test_a_series_that_never_settles_has_no_cut() -> None:
    assert find_warm_up(np.linspace(10.0, 1.0, 200)) is None


def test_drift_is_measured_and_told_from_noise() -> None:
    dice = random.Random(5)
    flat = np.array([dice.gauss(1.0, 0.2) for _ in range(200)])
    rising = flat + np.linspace(0, 2.0, 200)
    drift = measure_drift(rising)
    assert drift is not None
    assert drift[0] == pytest.approx(1.0, abs=0.2)  # from 1 to 3 around a mean of 2
    assert drift[1]
    assert measure_drift(flat[:15]) is None
    false_alarms = sum(
        bool((measure_drift(np.array([dice.gauss(1.0, 0.2) for _ in range(100)])) or (0, False))[1]) for _ in range(300)
    )
    assert false_alarms <= 10  # stated 1 % of 300


def test_a_run_is_assessed(make: Callable[[Any], Run], made: Any) -> None:
    run = make(made(requests=100))
    assert assess(run).settled


KNOBS = (
    Knob(name="n_parallel", kind="int", help="-", naive=1),
    Knob(name="cache_type_k", kind="choice", help="-", naive="f16", choices=("f16", "q8_0", "q4_0"), numerics=True),
)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({}, {"n_parallel": 8}, "not_needed"),
        ({}, {"cache_type_k": "f16"}, "not_needed"),
        ({}, {"cache_type_k": "q8_0"}, "not_run"),
        ({"cache_type_k": "q8_0"}, {"cache_type_k": "q8_0", "n_parallel": 4}, "not_needed"),
        ({"cache_type_k": "q8_0"}, {}, "not_needed"),
        ({"cache_type_k": "q8_0"}, {"cache_type_k": "q4_0"}, "not_run"),
    ],
)
def test_only_knobs_that_alter_answers_need_the_gate(
    before: dict[str, Any], after: dict[str, Any], verdict: str
) -> None:
    old, new = (EngineConfig(engine="e", model="m", knobs=knobs) for knobs in (before, after))
    assert need_quality(old, new, KNOBS).verdict == verdict


def test_another_model_needs_the_gate() -> None:
    old, new = EngineConfig(engine="e", model="a"), EngineConfig(engine="e", model="b")
    assert need_quality(old, new, KNOBS).verdict == "not_run"
