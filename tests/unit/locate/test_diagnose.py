"""The verdict on runs whose cause is planted, and what is said when a run cannot speak for the engine."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from powerband.locate.diagnose import diagnose
from powerband.records.finding import Diagnosis
from powerband.records.run import ClientCheck, Contention, Run
from powerband.records.slo import Slo
from powerband.records.value import Missing
from powerband.records.workload import Workload

Serve = Callable[[Workload, Any], Run]
Traffic = Callable[..., Workload]

# cause: traffic (rate, count, options), engine. Loads are chosen so that the planted part dominates by arithmetic:
# one seat at 10.5 ms a token and 40 tokens serves 2.4 requests/s, and 6 arrive.
PLANTED: dict[str, tuple[tuple[float, int, dict[str, Any]], dict[str, Any]]] = {
    "no_batching": ((6, 60, {}), {"slots": 1}),
    "queueing": ((30, 150, {}), {"slots": 3}),
    "static_batching": ((10, 120, {"answer": (5, 120)}), {"slots": 4, "static": True}),
    "kv_pressure": ((20, 120, {"prompt": (100, 400)}), {"slots": 16, "kv_tokens": 1200}),
    "tokenizer_bound": ((6, 100, {}), {"slots": 16, "tokenizer_s": 0.14}),
    "idle_no_work": ((0.5, 25, {}), {}),
    "memory_bandwidth_bound": ((10, 120, {"answer": (40, 160)}), {"slots": 64, "per_sequence_s": 0.0001}),
    "compute_bound": ((8, 120, {"answer": (40, 160)}), {"slots": 128, "base_s": 0.001, "per_sequence_s": 0.002}),
    "head_of_line_blocking": (
        (6, 160, {"prompt": (10, 40), "answer": (5, 15), "long_prompt": (0.06, 6000)}),
        {"slots": 64},
    ),
    "prefix_cache_miss": ((4, 100, {"prompt": (10, 40), "answer": (5, 15), "prefix_tokens": 600}), {"slots": 64}),
}
# Without the engine's gauges these cannot be told from outside; the verdict must not name another cause for sure.
NEEDS_GAUGES = {"kv_pressure", "tokenizer_bound", "prefix_cache_miss"}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_is_the_verdict(cause: str, seed: int, serve: Serve, plant: Any, poisson: Traffic) -> None:
    (rate, count, traffic), engine = PLANTED[cause]
    run = serve(poisson(rate, count, seed=seed, **traffic), plant(seed=seed, **engine))
    found = diagnose(run)
    assert found.verdict == cause, found.reason
    assert found.findings[0].cause == found.verdict
    check_sums(found)


@pytest.mark.parametrize("cause", sorted(set(PLANTED) - NEEDS_GAUGES))
def test_the_planted_cause_is_found_from_request_timings_alone(
    cause: str, serve: Serve, plant: Any, poisson: Traffic
) -> None:
    (rate, count, traffic), engine = PLANTED[cause]
    run = serve(poisson(rate, count, seed=4, **traffic), plant(gauges=False, **engine))
    found = diagnose(run)
    assert found.verdict == cause, found.reason
    check_sums(found)


@pytest.mark.parametrize("cause", ["kv_pressure", "tokenizer_bound"])
def test_without_gauges_what_cannot_be_told_apart_is_said_so(
    cause: str, serve: Serve, plant: Any, poisson: Traffic
) -> None:
    (rate, count, traffic), engine = PLANTED[cause]
    run = serve(poisson(rate, count, seed=4, **traffic), plant(gauges=False, **engine))
    found = diagnose(run)
    open_ = [finding for finding in found.findings if finding.cause == "undecided"]
    assert open_
    assert "shows no queue" in open_[0].evidence
    assert open_[0].share > 0.3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kv_gauge", [True, False])
@pytest.mark.parametrize(
    ("cause", "engine"),
    [
        ("kv_pressure", {"slots": 16, "kv_tokens": 700}),
        ("queueing", {"slots": 3}),
        ("static_batching", {"slots": 4, "static": True}),
    ],
)
def test_equal_requests_that_end_together_are_not_taken_for_a_static_batch(
    cause: str, engine: dict[str, Any], kv_gauge: bool, seed: int, serve: Serve, plant: Any, poisson: Traffic
) -> None:
    """Three at a time, all of one length: the next are let in at once, and answer when the others have ended."""
    answer = (10, 60) if cause == "static_batching" else (40, 40)
    traffic = poisson(14, 60, seed=seed, prompt=(180, 180), answer=answer)
    run = serve(traffic, plant(**{"prefill_tokens_per_s": 2000.0, "seed": seed, **engine}))
    run = msgspec.structs.replace(run, config=run.config.replace(max_num_seqs=engine["slots"]))
    if not kv_gauge:
        none = Missing(missing="not exposed")
        samples = tuple(msgspec.structs.replace(sample, kv_used_ratio=none) for sample in run.engine_samples)
        run = msgspec.structs.replace(run, engine_samples=samples)
    assert diagnose(run).verdict == cause


def test_a_queue_for_room_in_a_step_is_not_called_one_for_seats(serve: Serve, plant: Any, poisson: Traffic) -> None:
    """4,000 prompt tokens arrive a second; steps of 64 tokens take 16 ms for them and 10 ms besides: 2,460 a second."""
    traffic = poisson(10, 60, prompt=(200, 600), answer=(5, 15))
    run = serve(traffic, plant(slots=64, chunk_tokens=64, by_step=True))
    run = msgspec.structs.replace(run, config=run.config.replace(max_num_seqs=64, max_num_batched_tokens=64))
    first = diagnose(run).findings[0]
    assert (first.cause, first.setting) == ("queueing", "max_num_batched_tokens")
    assert "64 tokens of at most 64 meanwhile" in first.evidence
    assert "more tokens a step (max_num_batched_tokens)" in first.remedy
    # Of an engine that counts no steps: seats and cache are free, so more seats are no remedy.
    none = Missing(missing="not exposed")
    samples = tuple(msgspec.structs.replace(s, steps_total=none, kv_used_ratio=0.1) for s in run.engine_samples)
    first = diagnose(msgspec.structs.replace(run, engine_samples=samples)).findings[0]
    assert (first.cause, first.setting) == ("queueing", "")
    assert "more seats bring nothing" in first.remedy


def test_a_queue_for_seats_names_no_limit_of_steps(serve: Serve, plant: Any, poisson: Traffic) -> None:
    run = serve(poisson(30, 150), plant(slots=3))
    run = msgspec.structs.replace(run, config=run.config.replace(max_num_seqs=3, max_num_batched_tokens=512))
    first = diagnose(run).findings[0]
    assert (first.cause, first.setting) == ("queueing", "")
    assert "more sequences at once" in first.remedy


def test_a_seat_that_is_free_between_two_answers_is_not_taken_for_a_full_cache(
    serve: Serve, plant: Any, poisson: Traffic
) -> None:
    """32 seats whose readings mostly come when an answer has just ended, and a cache that is 60 % full."""
    run = serve(poisson(100, 200), plant(slots=32))
    samples = tuple(
        msgspec.structs.replace(s, running=31.0 if s.running == 32.0 else s.running, kv_used_ratio=0.6)
        for s in run.engine_samples
    )
    run = msgspec.structs.replace(run, engine_samples=samples, config=run.config.replace(max_num_seqs=32))
    first = diagnose(run).findings[0]
    assert first.cause == "queueing", first.evidence
    assert "more sequences at once" in first.remedy


def test_a_cache_that_works_is_no_finding(serve: Serve, plant: Any, poisson: Traffic) -> None:
    traffic = poisson(4, 100, prompt=(10, 40), answer=(5, 15), prefix_tokens=600)
    found = diagnose(serve(traffic, plant(slots=64, prefix_cache=True)))
    assert "prefix_cache_miss" not in {finding.cause for finding in found.findings}


def test_a_contended_host_is_never_blamed_on_the_engine(serve: Serve, plant: Any, poisson: Traffic) -> None:
    run = serve(poisson(6, 60), plant(slots=1))
    contended = Contention(contended=True, reason="1.9 of 2 cores went to other processes", other_cores=1.9)
    found = diagnose(msgspec.structs.replace(run, contention=contended))
    assert found.verdict == "undecided"
    assert "1.9 of 2 cores" in found.reason
    assert [finding.cause for finding in found.findings] == ["undecided"]


def test_a_limited_client_is_the_verdict(serve: Serve, plant: Any, poisson: Traffic) -> None:
    run = serve(poisson(6, 60), plant(slots=1))
    none = Missing(missing="-")
    limited = ClientCheck(
        verdict="limited", reason="starts were late", schedule_delay_s=none, loop_lag_s=none, cpu_ratio=1.0
    )
    found = diagnose(msgspec.structs.replace(run, client=limited))
    assert (found.verdict, found.findings[0].share) == ("client_limited", 1.0)


def test_an_idle_engine_that_misses_its_promise_is_not_called_idle(serve: Serve, plant: Any, poisson: Traffic) -> None:
    run = serve(poisson(0.5, 25), plant())
    assert diagnose(run, slo=Slo(e2e_s=5.0)).verdict == "idle_no_work"
    assert diagnose(run, slo=Slo(tpot_s=0.001)).verdict == "memory_bandwidth_bound"


def test_failures_and_too_few_answers_are_undecided_with_the_count(serve: Serve, plant: Any, poisson: Traffic) -> None:
    run = serve(poisson(6, 20), plant())
    broken = tuple(
        msgspec.structs.replace(t, status="error", error="http_503: busy", t_chunks_ns=(), chunk_tokens=())
        for t in run.traces
    )
    found = diagnose(msgspec.structs.replace(run, traces=broken))
    assert found.verdict == "undecided"
    assert "20 of 20 requests failed" in found.reason
    assert "http_503" in found.reason
    few = diagnose(msgspec.structs.replace(run, traces=run.traces[:3]))
    assert few.verdict == "undecided"
    assert "only 3 of 3" in few.reason


def check_sums(found: Diagnosis) -> None:
    assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s, abs=1e-9)
    assert sum(part.share for part in found.breakdown) == pytest.approx(1.0, abs=1e-9)
    assert found.mean_request_s is not None
    assert sum(part.seconds for part in found.request_breakdown) == pytest.approx(found.mean_request_s, rel=1e-9)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Diagnosis) == found
