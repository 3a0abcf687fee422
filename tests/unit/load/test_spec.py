"""Specs: lengths, arrivals, sessions, and what is refused."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.load import arrivals
from powerband.load.traffic import build_workload
from powerband.records.errors import RequestError


def test_a_closed_loop_keeps_no_offsets() -> None:
    workload = build_workload("in=512,out=128,concurrency=8", requests=20)
    assert workload.concurrency == 8
    assert {(r.offset_ns, r.input_tokens, r.output_tokens) for r in workload.requests} == {(0, 512, 128)}
    assert workload.request_rate_per_s is None


def test_the_default_is_stated() -> None:
    workload = build_workload(None, requests=3)
    assert "in=512,out=128,concurrency=8" in workload.source


def test_the_same_seed_gives_the_same_workload() -> None:
    spec = "in=lognormal(6.0,0.9,16..3000),out=uniform(8..800),arrivals=gamma(45/s,2.5)"
    assert build_workload(spec, seed=3) == build_workload(spec, seed=3)
    assert build_workload(spec, seed=3).requests != build_workload(spec, seed=4).requests


def test_lognormal_has_its_median_and_bounds() -> None:
    """The median of lognormal(6, 0.5) is e^6 = 403; the bounds cut off less than 0.1 % here."""
    workload = build_workload("in=lognormal(6.0,0.5,16..3000),out=1,concurrency=1", requests=20_000)
    lengths = [r.input_tokens for r in workload.requests]
    assert np.median(lengths) == pytest.approx(math.exp(6), rel=0.02)
    assert min(lengths) >= 16
    assert max(lengths) <= 3000


@given(low=st.integers(1, 50), extra=st.integers(0, 50))
def test_draws_stay_within_their_bounds(low: int, extra: int) -> None:
    spec = f"in=uniform({low}..{low + extra}),out=normal(40,30,{low}..{low + extra + 60}),concurrency=1"
    for request in build_workload(spec, requests=50).requests:
        assert low <= request.input_tokens <= low + extra
        assert low <= request.output_tokens <= low + extra + 60


@pytest.mark.parametrize(("text", "cv"), [("poisson(50/s)", 1.0), ("gamma(50/s,3.0)", 3.0), ("gamma(50/s,0.2)", 0.2)])
def test_gaps_have_their_mean_and_coefficient_of_variation(text: str, cv: float) -> None:
    workload = build_workload(f"in=1,out=1,arrivals={text}", requests=20_000)
    gaps = np.diff([r.offset_ns / 1e9 for r in workload.requests])
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.07)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.07)


def test_constant_burst_and_scaled_rates() -> None:
    steady = build_workload("in=1,out=1,arrivals=constant(4/s)", requests=5, scale_rate=2)
    assert [r.offset_ns for r in steady.requests] == [0, 125_000_000, 250_000_000, 375_000_000, 500_000_000]
    assert steady.scaling == "arrival rate x2"
    burst = build_workload("in=1,out=1,arrivals=burst", requests=5)
    assert {r.offset_ns for r in burst.requests} == {0}


def test_a_ramp_sends_the_integral_of_its_rate() -> None:
    """From 0 to 10/s over 10 s: 50 requests; the k-th comes at sqrt(2k) s, since t^2 / 2 have come by t."""
    offsets = arrivals.ramp(0.0, 10.0, 10.0, 61)
    assert offsets[8] == pytest.approx(4.0)
    assert offsets[50] == pytest.approx(10.0)
    assert offsets[60] == pytest.approx(11.0)


def test_steps_hold_each_rate_in_turn() -> None:
    workload = build_workload("in=1,out=1,arrivals=steps(20/s,100/s,50s)", requests=4000)
    times = np.array([r.offset_ns / 1e9 for r in workload.requests])
    assert (times < 50).sum() / 50 == pytest.approx(20, rel=0.1)
    assert ((times >= 50) & (times < 75)).sum() / 25 == pytest.approx(100, rel=0.1)


def test_turns_grow_by_what_was_said() -> None:
    workload = build_workload("in=10,out=5,turns=3,concurrency=2", requests=4)
    assert [r.input_tokens for r in workload.requests] == [10, 25, 40, 10]
    assert [r.session for r in workload.requests] == [0, 0, 0, 1]
    assert all(r.prefix_tokens == r.input_tokens for r in workload.requests)


def test_lengths_of_a_trace_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"input_tokens": {n}, "output_tokens": {1000 + n}}}\n' for n in range(1, 500)))
    workload = build_workload(f"lengths={path},arrivals=poisson(5/s)", requests=100)
    assert len(workload.requests) == 100
    assert all(r.output_tokens - r.input_tokens == 1000 for r in workload.requests)
    # an even draw of 1..499 has mean 250; its standard error with 100 draws is 14
    assert np.mean([r.input_tokens for r in workload.requests]) == pytest.approx(250, abs=60)


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        ("in=512,out=128", "needs one of concurrency="),
        ("in=512,out=128,concurrency=8,arrivals=burst", "needs one of concurrency="),
        ("in=512,concurrency=8", "needs in= and out="),
        ("in=512,out=0,concurrency=8", "out='0'"),
        ("in=512,out=128,concurrency=eight", "concurrency='eight'"),
        ("in=512,out=128,concurency=8", "unknown traffic field 'concurency'"),
        ("in=512,in=3,out=128,concurrency=8", "names in= twice"),
        ("in=lognormal(6.0),out=1,concurrency=8", "in='lognormal(6.0)'"),
        ("in=lognormal(6.0,nan),out=1,concurrency=8", "is not finite"),
        ("in=lognormal(6.0,0.9,16..3000,out=1,concurrency=8", "no closing parenthesis"),
        ("in=uniform(9..3),out=1,concurrency=8", "needs 1 <= low <= high"),
        ("in=normal(900,1,1..10),out=1,concurrency=8", "almost no length"),
        ("in=1,out=1,arrivals=weibull(3/s)", "unknown arrival process 'weibull'"),
        ("in=1,out=1,arrivals=poisson(3)", "cannot read rate '3'"),
        ("in=1,out=1,arrivals=poisson(0/s)", "must be above 0"),
        ("in=1,out=1,arrivals=gamma(3/s)", "cannot read arrivals="),
        ("in=1,out=1,arrivals=gamma(3/s,0)", "cannot read arrivals="),
        ("in=1,out=1,arrivals=steps(30s)", "cannot read arrivals="),
        ("in=1,out=1,concurrency=2,prefix=5,turns=3", "each say what prompts share"),
        ("lengths=nowhere.csv,concurrency=2", "no traffic file"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_part_at_fault(spec: str, seen: str) -> None:
    with pytest.raises(RequestError) as caught:
        build_workload(spec)
    assert seen in caught.value.message
    assert caught.value.hint


def test_a_closed_loop_has_no_rate_to_scale() -> None:
    with pytest.raises(RequestError, match="no rate to scale"):
        build_workload("in=1,out=1,concurrency=2", scale_rate=2.0)
