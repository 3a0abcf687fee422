"""Verdicts on made-up repeats with a known effect; statistics are tested as statistics."""

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from powerband.records.request import RequestTrace
from powerband.records.run import ClientCheck, Contention, Run
from powerband.records.slo import Slo
from powerband.records.value import Interval, Missing
from powerband.records.verdict import Compared, QualityResult, Verdict
from powerband.verify.compare import compare, per_card

Make = Callable[[Any], Run]
NOT_NEEDED = QualityResult(verdict="not_needed", reason="no changed knob alters the answers")
NOT_RUN = QualityResult(verdict="not_run", reason="cache_type_k=q4_0 can change the answers")
FAILED = QualityResult(verdict="failed", reason="perplexity rose by 40 %")


def runs(make: Make, made: Any, count: int, *, first_seed: int = 0, **options: Any) -> list[Run]:
    return [make(made(seed=first_seed + k, **options)) for k in range(count)]


def row(verdict: Verdict, name: str) -> Compared:
    return next(row for row in verdict.metrics if row.name == name)


def repeat(make: Make, made: Any, speed: float, sd: float, repeats: int, count: int) -> tuple[Counter[str], float]:
    """Verdicts of ``count`` comparisons, and how often the interval of output tokens/s held the true ratio."""
    verdicts: Counter[str] = Counter()
    held = 0
    for k in range(count):
        before = runs(make, made, repeats, first_seed=1000 * k, run_sd=sd, requests=30)
        after = runs(make, made, repeats, first_seed=1000 * k + 500, run_sd=sd, requests=30, speed=speed)
        found = compare(before, after, slo=None, quality=NOT_NEEDED)
        verdicts[found.verdict] += 1
        interval = found.metrics[0].interval
        assert isinstance(interval, Interval)
        held += interval.low <= speed <= interval.high
    return verdicts, held / count


@pytest.mark.parametrize(("repeats", "sd"), [(2, 0.03), (3, 0.01), (3, 0.05)])
def test_equal_configs_are_kept_in_at_most_their_stated_share(repeats: int, sd: float, make: Make, made: Any) -> None:
    verdicts, held = repeat(make, made, 1.0, sd, repeats, 200)
    # Stated: 5 %. Of 200 draws at 5 %, 18 or more come up in 1.5 % of cases; the seeds are fixed.
    assert verdicts["keep"] <= 17
    assert held >= 0.84  # stated 0.9; three standard errors of 200 draws


def test_a_five_percent_gain_is_found_when_the_noise_allows_it(make: Make, made: Any) -> None:
    verdicts, held = repeat(make, made, 1.05, 0.01, 5, 100)
    assert verdicts["keep"] >= 80  # each run spreads by 1 % and its 30 requests by about 1 % more
    assert verdicts["revert"] <= 2
    assert held >= 0.8


def test_a_large_gain_is_kept_and_a_large_loss_reverted_with_three_repeats(make: Make, made: Any) -> None:
    slow, fast = runs(make, made, 3), runs(make, made, 3, first_seed=50, speed=1.5)
    kept = compare(slow, fast, slo=None, quality=NOT_NEEDED)
    assert kept.verdict == "keep"
    assert "better beyond noise" in kept.reason
    assert row(kept, "output_tokens_per_s").ratio == pytest.approx(1.5, rel=0.1)
    assert row(kept, "e2e_p50_s").ratio == pytest.approx(1 / 1.5, rel=0.2)
    assert row(kept, "e2e_p50_s").verdict == "better"
    assert compare(fast, slow, slo=None, quality=NOT_NEEDED).verdict == "revert"


def test_a_change_that_alters_answers_is_never_kept_without_the_gate(make: Make, made: Any) -> None:
    slow, fast = runs(make, made, 3), runs(make, made, 3, first_seed=50, speed=2.0)
    unchecked = compare(slow, fast, slo=None, quality=NOT_RUN)
    assert unchecked.verdict == "undecided"
    assert "cache_type_k=q4_0" in unchecked.reason
    assert compare(slow, fast, slo=None, quality=FAILED).verdict == "revert"
    assert compare(fast, slow, slo=None, quality=NOT_RUN).verdict == "revert"


def test_one_run_a_side_is_undecided_whatever_it_shows(make: Make, made: Any) -> None:
    found = compare(runs(make, made, 1), runs(make, made, 1, first_seed=9, speed=3.0), slo=None, quality=NOT_NEEDED)
    assert found.verdict == "undecided"
    assert "repeat each" in found.reason
    assert (found.repeats, found.noise_floor) == (1, None)
    assert {entry.verdict for entry in found.metrics} == {"undecided"}


def test_repeats_elsewhere_lend_their_noise_to_one_run_a_side(make: Make, made: Any) -> None:
    elsewhere = [runs(make, made, 4, first_seed=100, speed=0.8)]
    before, after = runs(make, made, 1), runs(make, made, 1, first_seed=9, speed=3.0)
    found = compare(before, after, slo=None, quality=NOT_NEEDED, elsewhere=elsewhere)
    assert found.verdict == "keep"
    assert found.noise_floor is not None


def test_runs_that_cannot_speak_for_the_engine_are_left_out_and_counted(make: Make, made: Any) -> None:
    before, after = runs(make, made, 3), runs(make, made, 3, first_seed=50, speed=1.5)
    none = Missing(missing="-")
    contended = Contention(contended=True, reason="a neighbour took 1.5 cores", other_cores=1.5)
    limited = ClientCheck(
        verdict="limited", reason="starts were late", schedule_delay_s=none, loop_lag_s=none, cpu_ratio=1.0
    )
    before[0] = msgspec.structs.replace(before[0], contention=contended)
    after[1] = msgspec.structs.replace(after[1], client=limited)
    found = compare(before, after, slo=None, quality=NOT_NEEDED)
    assert (found.repeats, found.excluded, found.verdict) == (2, 2, "keep")
    assert any("a neighbour took 1.5 cores" in note for note in found.notes)
    assert any("starts were late" in note for note in found.notes)
    gone = [msgspec.structs.replace(run, contention=contended) for run in before]
    nothing = compare(gone, after, slo=None, quality=NOT_NEEDED)
    assert (nothing.verdict, nothing.repeats) == ("undecided", 0)
    assert "no usable run" in nothing.reason


def test_measured_and_simulated_runs_are_not_compared(make: Make, made: Any) -> None:
    after = [msgspec.structs.replace(run, basis="simulated") for run in runs(make, made, 3, first_seed=5)]
    found = compare(runs(make, made, 3), after, slo=None, quality=NOT_NEEDED)
    assert found.verdict == "undecided"
    assert "simulated" in found.reason


def slow_ttft(run: Run, by_ns: int) -> Run:
    def shift(trace: RequestTrace) -> RequestTrace:
        """The first token later, the rest as it was: throughput stays, time to first token does not."""
        chunks = (min(trace.t_chunks_ns[0] + by_ns, trace.t_chunks_ns[1]), *trace.t_chunks_ns[1:])
        return msgspec.structs.replace(trace, t_chunks_ns=chunks)

    return msgspec.structs.replace(run, traces=tuple(shift(trace) for trace in run.traces))


def test_throughput_bought_with_latency_is_undecided_without_a_promise(make: Make, made: Any, slo: Slo) -> None:
    before = runs(make, made, 3, run_sd=0.005, gap_s=0.2)
    after = [
        slow_ttft(run, 100_000_000) for run in runs(make, made, 3, first_seed=50, run_sd=0.005, gap_s=0.2, speed=1.15)
    ]
    found = compare(before, after, slo=None, quality=NOT_NEEDED)
    assert row(found, "output_tokens_per_s").verdict == "better"
    assert row(found, "ttft_p50_s").verdict == "worse"
    assert found.verdict == "undecided"
    assert "--slo" in found.reason


def test_equal_throughput_and_shorter_requests_are_a_gain(make: Make, made: Any) -> None:
    """Open loop far below capacity: the traffic sets the throughput, so only latency can improve."""
    before = runs(make, made, 3, closed=False, requests=80, ttft_s=0.1, gap_s=0.005)
    after = runs(make, made, 3, first_seed=50, closed=False, requests=80, ttft_s=0.1, gap_s=0.005, speed=1.3)
    found = compare(before, after, slo=None, quality=NOT_NEEDED)
    assert row(found, "output_tokens_per_s").verdict == "same"
    assert found.verdict == "keep"
    assert compare(after, before, slo=None, quality=NOT_NEEDED).verdict == "revert"


def test_a_gain_too_small_to_matter_is_reverted(make: Make, made: Any) -> None:
    before = runs(make, made, 5, run_sd=0.001, request_sd=0.01)
    after = runs(make, made, 5, first_seed=50, run_sd=0.001, request_sd=0.01, speed=1.01)
    found = compare(before, after, slo=None, quality=NOT_NEEDED)
    assert found.verdict == "revert"
    assert "3 %" in found.reason


def test_goodput_from_zero_is_said_so_and_leaves_no_nan_in_json(make: Make, made: Any, slo: Slo) -> None:
    before, after = runs(make, made, 3, ttft_s=5.0), runs(make, made, 3, first_seed=50)
    found = compare(before, after, slo=slo, quality=NOT_NEEDED)
    goodput = row(found, "goodput_per_s")
    assert goodput.before == 0.0
    assert isinstance(goodput.ratio, Missing)
    assert found.verdict == "keep"
    assert "from 0" in found.reason
    back = compare(after, before, slo=slo, quality=NOT_NEEDED)
    assert back.verdict == "revert"
    assert row(back, "goodput_per_s").ratio == 0.0
    for verdict in (found, back):
        text = msgspec.json.encode(verdict)
        assert msgspec.json.decode(text, type=Verdict) == verdict
        assert_finite(json.loads(text))


def test_nothing_good_on_either_side_is_no_gain(make: Make, made: Any, slo: Slo) -> None:
    found = compare(
        runs(make, made, 3, ttft_s=5.0), runs(make, made, 3, first_seed=9, ttft_s=5.0), slo=slo, quality=NOT_NEEDED
    )
    assert found.verdict == "revert"
    assert_finite(json.loads(msgspec.json.encode(found)))


def test_one_good_request_after_none_is_undecided(make: Make, made: Any, slo: Slo) -> None:
    before = runs(make, made, 2, ttft_s=5.0, requests=20)
    after = runs(make, made, 2, first_seed=9, ttft_s=5.0, requests=20)
    quick = [
        msgspec.structs.replace(
            t, t_chunks_ns=(t.t_sched_ns, *(t.t_sched_ns + k for k in range(1, len(t.t_chunks_ns))))
        )
        for t in after[0].traces[:1]
    ]
    after[0] = msgspec.structs.replace(after[0], traces=(*quick, *after[0].traces[1:]))
    assert compare(before, after, slo=slo, quality=NOT_NEEDED).verdict == "undecided"


def test_the_same_runs_on_both_sides_give_a_ratio_of_one(make: Make, made: Any, slo: Slo) -> None:
    same = runs(make, made, 3)
    for entry in compare(same, same, slo=slo, quality=NOT_NEEDED).metrics:
        assert entry.ratio == pytest.approx(1.0)
        assert isinstance(entry.interval, Interval)
        assert entry.interval.low <= 1 <= entry.interval.high


def test_no_run_and_runs_without_answers_are_undecided_and_not_an_error(make: Make, made: Any) -> None:
    assert compare([], [], slo=None, quality=NOT_NEEDED).verdict == "undecided"
    silent = [
        msgspec.structs.replace(
            run,
            traces=tuple(
                msgspec.structs.replace(t, status="dropped", t_chunks_ns=(), chunk_tokens=()) for t in run.traces
            ),
        )
        for run in runs(make, made, 2)
    ]
    found = compare(silent, runs(make, made, 2, first_seed=9), slo=None, quality=NOT_NEEDED)
    assert found.verdict == "keep"
    assert [entry.name for entry in found.metrics] == ["output_tokens_per_s"]


def assert_finite(node: Any) -> None:
    if isinstance(node, dict):
        for value in node.values():
            assert_finite(value)
    elif isinstance(node, list):
        for value in node:
            assert_finite(value)
    elif isinstance(node, float):
        assert math.isfinite(node)


def test_a_row_for_each_card_by_hand() -> None:
    slower = Compared(
        name="goodput_per_s", before=10.0, after=9.0, ratio=0.9, interval=Interval(low=0.85, high=0.95),
        better="higher", verdict="worse",
    )  # fmt: skip
    each = per_card(slower, (2, 1), 0.03, repeated=True)
    assert (each.name, each.before, each.after, each.ratio) == ("goodput_per_s_per_card", 5.0, 9.0, 1.8)
    assert each.interval == Interval(low=1.7, high=1.9)
    assert each.verdict == "better"
    assert per_card(slower, (2, 1), 0.03, repeated=False).verdict == "worse"  # one run a side decides nothing new


def test_half_the_cards_for_little_less_is_cheaper(make: Make, made: Any) -> None:
    before, after = runs(make, made, 3, speed=1.1, closed=False), runs(make, made, 3, first_seed=9, closed=False)
    slo = Slo(ttft_s=5.0, attainment=0.95)
    plain = compare(before, after, slo=slo, quality=NOT_NEEDED)
    assert (plain.verdict, plain.objective) == ("revert", "goodput_per_s")
    cheaper = compare(before, after, slo=slo, quality=NOT_NEEDED, cards=(2, 1))
    assert (cheaper.verdict, cheaper.objective) == ("keep", "goodput_per_s_per_card")
    assert "goodput of a card" in cheaper.reason
    # Traffic at a fixed rate sets both sides' goodput: for each card it doubles.
    assert row(cheaper, "goodput_per_s_per_card").ratio == pytest.approx(2.0, rel=0.05)


def test_cheaper_and_beyond_the_promise_is_no_gain(make: Make, made: Any) -> None:
    slo = Slo(ttft_s=0.3, attainment=0.95)
    before = runs(make, made, 3, speed=2.0, closed=False)
    after = runs(make, made, 3, first_seed=9, closed=False, ttft_s=0.28)  # a good share of requests is now too late
    found = compare(before, after, slo=slo, quality=NOT_NEEDED, cards=(2, 1))
    assert row(found, "attainment").after < 0.95
    assert found.verdict == "undecided"
    assert "the promise is met less often" in found.reason
