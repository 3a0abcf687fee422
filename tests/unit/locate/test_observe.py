"""Watching an engine without sending anything: gauges and counters only."""

import msgspec
import pytest

from powerband.locate.diagnose import diagnose
from powerband.records.config import EngineConfig
from powerband.records.run import Contention, Run
from powerband.records.sample import EngineSample
from powerband.records.value import Measured, Missing
from powerband.records.workload import Workload

NONE = Missing(missing="not exposed")


def watched(
    running: list[float], waiting: list[float], *, kv: Measured = NONE, preempted: float = 0.0, prefill: float = 1.0
) -> Run:
    count = len(running)
    samples = tuple(
        EngineSample(
            t_ns=k * 1_000_000_000,
            running=running[k],
            waiting=waiting[k],
            kv_used_ratio=kv,
            preemptions_total=preempted * k,
            prefill_seconds_total=prefill * k / count,
            decode_seconds_total=3.0 * k / count,
        )
        for k in range(count)
    )
    return Run(
        run_id="w",
        basis="measured",
        config=EngineConfig(engine="openai", model=""),
        effective=NONE,
        workload=Workload(requests=(), source="none sent"),
        traces=(),
        end_ns=samples[-1].t_ns if samples else 0,
        engine_samples=samples,
    )


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (watched([1.0] * 20, [3.0] * 20), "no_batching"),
        (watched([4.0] * 20, [8.0] * 20), "queueing"),
        (watched([4.0] * 20, [8.0] * 20, kv=0.97), "kv_pressure"),
        (watched([4.0] * 20, [8.0] * 20, preempted=1.0), "kv_pressure"),
        (watched([0.0] * 16 + [1.0] * 4, [0.0] * 20), "idle_no_work"),
        (watched([4.0] * 20, [0.0] * 20), "undecided"),
        (watched([4.0] * 2, [8.0] * 2), "undecided"),
    ],
)
def test_gauges_name_the_cause(run: Run, cause: str) -> None:
    found = diagnose(run)
    assert found.verdict == cause, found.reason
    assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s)


def test_a_queue_beside_free_seats_is_not_told_to_add_seats() -> None:
    run = watched([4.0] * 20, [8.0] * 20, kv=0.3)
    run = msgspec.structs.replace(run, config=run.config.replace(max_num_seqs=64))
    (queue,) = diagnose(run).findings
    assert queue.cause == "queueing"
    assert "seats were free (max_num_seqs 64)" in queue.evidence
    assert "more sequences" not in queue.remedy


def test_a_seat_that_is_free_between_two_answers_is_no_free_seat() -> None:
    run = watched([31.0] * 20, [60.0] * 20, kv=0.3)
    (queue,) = diagnose(msgspec.structs.replace(run, config=run.config.replace(max_num_seqs=32))).findings
    assert "more sequences at once" in queue.remedy


def test_busy_time_is_split_by_the_engines_own_seconds() -> None:
    found = diagnose(watched([2.0] * 15 + [0.0] * 5, [0.0] * 20))
    shares = {part.name: part.share for part in found.breakdown}
    assert shares["no work"] == pytest.approx(0.25)
    assert shares["prefill"] == pytest.approx(0.75 / 4)
    assert shares["decode"] == pytest.approx(0.75 * 3 / 4)


def test_nothing_watched_is_undecided_and_contention_comes_first() -> None:
    assert diagnose(watched([], [])).verdict == "undecided"
    run = watched([1.0] * 20, [3.0] * 20)
    contended = Contention(contended=True, reason="3 busy neighbours", other_cores=3.0)
    found = diagnose(msgspec.structs.replace(run, contention=contended))
    assert found.verdict == "undecided"
    assert "3 busy neighbours" in found.reason
