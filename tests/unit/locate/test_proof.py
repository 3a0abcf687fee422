"""What a test says of a cause: thresholds by hand, and the diagnosis after the tests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.locate.proof import (
    Level,
    apply_proofs,
    growing_share,
    judge_halved,
    judge_removal,
    judge_sweep,
    judge_unchanged,
    needed_gain,
)
from powerband.records.finding import Cause, Diagnosis, Finding, Proof, Status
from powerband.records.value import Interval, Missing

NONE = Missing(missing="one window")


def around(middle: float, half: float = 0.05) -> Interval:
    return Interval(low=middle - half, high=middle + half)


@pytest.mark.parametrize(
    ("share", "needed"),
    [(0.0, 1.05), (0.1, 1.05), (0.4, 1 / 0.9), (0.8, 1.25), (1.0, 4 / 3), (7.0, 4 / 3), (-1.0, 1.05)],
)
def test_a_quarter_of_the_claim_is_asked_for_and_five_percent_at_least(share: float, needed: float) -> None:
    assert needed_gain(share) == pytest.approx(needed)


@pytest.mark.parametrize(
    ("interval", "status"),
    [
        (around(2.0), "confirmed"),
        (around(1.0), "refuted"),
        (around(1.25), "suspected"),
        (Interval(low=0.5, high=4.0), "suspected"),
        (NONE, "suspected"),
    ],
)
def test_removing_a_cause_must_pay_with_the_whole_interval(interval: Interval | Missing, status: Status) -> None:
    said, reason = judge_removal(0.8, 1.9, interval)
    assert said == status
    assert "1.90x" in reason


def test_an_idle_engine_bears_twice_the_load() -> None:
    assert judge_unchanged(1.05, around(1.05))[0] == "confirmed"
    assert judge_unchanged(2.0, around(2.0))[0] == "refuted"
    assert judge_unchanged(1.2, around(1.2, 0.3))[0] == "suspected"
    assert judge_unchanged(1.0, NONE)[0] == "suspected"


def test_prefill_halves_with_the_prompt() -> None:
    assert judge_halved(1.9, around(1.9))[0] == "confirmed"
    assert judge_halved(1.05, around(1.05))[0] == "refuted"
    assert judge_halved(1.4, around(1.4))[0] == "suspected"


def level(sequences: int, tpot_ms: float, rate: float) -> Level:
    return Level(sequences, (tpot_ms / 1e3,) * 3, (rate,) * 3)


def test_the_growing_part_of_a_step_by_hand() -> None:
    # 10 ms alone and 17 ms for eight: 1 ms for each sequence beyond the first, 8 of 17 ms.
    assert growing_share(level(1, 10, 100), level(8, 17, 470), 0) == pytest.approx(8 / 17)
    assert growing_share(level(1, 10, 100), level(8, 9, 800), 0) == 0.0


@pytest.mark.parametrize(
    ("cause", "levels", "interval", "status"),
    [
        ("memory_bandwidth_bound", (level(1, 10, 100), level(8, 11, 727)), around(0.1), "confirmed"),
        ("compute_bound", (level(1, 10, 100), level(8, 11, 727)), around(0.1), "refuted"),
        ("compute_bound", (level(1, 3, 333), level(8, 20, 400)), around(0.9), "confirmed"),
        ("memory_bandwidth_bound", (level(1, 3, 333), level(8, 20, 400)), around(0.9), "refuted"),
        ("compute_bound", (level(1, 3, 333), level(8, 6, 900)), around(0.5, 0.2), "suspected"),
        ("memory_bandwidth_bound", (level(1, 20, 50), level(8, 20, 49)), around(0.01, 0.01), "suspected"),
        ("compute_bound", (level(1, 20, 50), level(8, 20, 49)), around(0.01, 0.01), "suspected"),
        ("no_batching", (level(1, 10, 100), level(4, 10, 101)), around(1.01), "confirmed"),
        ("no_batching", (level(1, 10, 100), level(4, 11, 380)), around(3.8), "refuted"),
        ("no_batching", (level(1, 10, 100), level(4, 11, 120)), around(1.2, 0.2), "suspected"),
        ("no_batching", (level(1, 10, 100), level(4, 11, 120)), NONE, "suspected"),
    ],
)
def test_a_sweep_tells_how_steps_grow(cause: Cause, levels: tuple[Level, ...], interval: Interval, status: str) -> None:
    assert judge_sweep(cause, levels, interval)[0] == status


def finding(cause: Cause, share: float) -> Finding:
    return Finding(cause=cause, share=share, evidence="e", remedy="r", test="t", of="request_time")


def proof(cause: Cause, status: Status, gain: float = 2.0) -> Proof:
    return Proof(
        test="a test", cause=cause, change="a -> b", metric="s", before=2.0, after=1.0, gain=gain,
        interval=around(gain), status=status, reason="because",
    )  # fmt: skip


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(sources=(), window_s=1.0, breakdown=(), verdict=findings[0].cause, findings=findings)


def test_a_refuted_finding_goes_last_and_is_no_verdict() -> None:
    found = apply_proofs(
        diagnosis(finding("queueing", 0.6), finding("compute_bound", 0.3)), [proof("queueing", "refuted")]
    )
    assert [(f.cause, f.status) for f in found.findings] == [("compute_bound", "suspected"), ("queueing", "refuted")]
    assert found.verdict == "compute_bound"


def test_when_all_is_refuted_the_answer_is_undecided() -> None:
    found = apply_proofs(diagnosis(finding("queueing", 0.6)), [proof("queueing", "refuted")])
    assert found.verdict == "undecided"
    assert "because" in found.reason


def test_a_confirmed_finding_says_by_what() -> None:
    found = apply_proofs(diagnosis(finding("queueing", 0.6)), [proof("queueing", "confirmed")])
    assert found.findings[0].status == "confirmed"
    assert found.findings[0].proof == found.proofs[0]
    assert "confirmed: because" in found.reason


def test_tests_that_disagree_prove_nothing() -> None:
    found = apply_proofs(
        diagnosis(finding("no_batching", 0.6)), [proof("no_batching", "confirmed"), proof("no_batching", "refuted")]
    )
    assert found.findings[0].status == "suspected"


def test_a_tokenizer_that_no_rule_had_seen_is_added_and_what_a_sweep_says_of_decode_is_not() -> None:
    found = apply_proofs(
        diagnosis(finding("queueing", 0.6)),
        [proof("tokenizer_bound", "confirmed"), proof("memory_bandwidth_bound", "confirmed")],
    )
    assert [f.cause for f in found.findings] == ["queueing", "tokenizer_bound"]
    assert found.findings[1].share == pytest.approx(0.5)
    assert len(found.proofs) == 2


@given(st.floats(0.0, 1.0), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_confirmed_and_refuted_exclude_each_other(share: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    status, _ = judge_removal(share, (low + high) / 2, Interval(low=low, high=high))
    needed = needed_gain(share)
    assert (status == "confirmed") == (low >= needed)
    assert (status == "refuted") == (high < needed)
