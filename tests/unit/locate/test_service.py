"""Seats and step times, inferred from hand-made token streams."""

import msgspec
import numpy as np
import pytest

from powerband.locate.breakdown import split_window
from powerband.locate.decode import find_decode
from powerband.locate.diagnose import diagnose
from powerband.locate.queueing import turnaround_slope
from powerband.locate.request_time import split_requests
from powerband.locate.roofline import decode_floor_s, prefill_floor_s
from powerband.locate.service import seat_in_order
from powerband.locate.view import View, build_view
from powerband.records.config import Effective, EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.sample import EngineSample
from powerband.records.value import Missing
from powerband.records.workload import Workload

MS = 1_000_000

MODEL = ModelSpec(
    name="7b",
    architecture="llama",
    layers=(LayerGroup(count=32, kind="attention", kv_heads=32, head_dim=128),),
    hidden=4096,
    heads=32,
    vocab=32000,
    parameters=7_000_000_000,
    active_parameters=7_000_000_000,
    weight_bytes=14_000_000_000,
    weight_dtype="bf16",
    basis="computed",
    context_tokens=4096,
)
GPU = DeviceSpec(
    name="card",
    vendor="any",
    kind="gpu",
    memory_bytes=80 << 30,
    bandwidth_bytes_per_s=1.4e12,
    flops_per_s={"bf16": 1e15},
    source="test",
)


def run_of(streams: list[tuple[int, list[int]]], slots: int | None = None) -> Run:
    """(send, chunks) per request, in ms."""
    traces = tuple(
        RequestTrace(
            index=i,
            status="ok",
            input_tokens=10,
            output_tokens_asked=len(chunks),
            t_sched_ns=send * MS,
            t_send_ns=send * MS,
            t_end_ns=chunks[-1] * MS,
            t_chunks_ns=tuple(t * MS for t in chunks),
            chunk_tokens=(1,) * len(chunks),
        )
        for i, (send, chunks) in enumerate(streams)
    )
    none = Missing(missing="test")
    return Run(
        run_id="r",
        basis="measured",
        config=EngineConfig(engine="e", model="m"),
        effective=none if slots is None else Effective(values={"max_num_seqs": slots}, source="test"),
        workload=Workload(requests=(), source="test"),
        traces=traces,
        end_ns=max(t.t_end_ns or 0 for t in traces),
    )


def steady(send: int, first: int, count: int, gap: int) -> tuple[int, list[int]]:
    return send, [first + gap * k for k in range(count)]


def one_after_another(count: int = 10) -> list[tuple[int, list[int]]]:
    return [steady(0, 5 + 100 * k, 10, 10) for k in range(count)]


def test_seats_are_taken_in_order_and_freed_at_the_last_token() -> None:
    # Two seats, three requests at once: the third starts when the first to end does (at 95 ms).
    view = build_view(run_of([steady(0, 5, 10, 10), steady(0, 5, 20, 10), steady(0, 105, 10, 10)], slots=2))
    assert view.service.limit == 2
    assert [t // MS for t in view.service.start_ns.tolist()] == [0, 0, 95]
    starts = seat_in_order(view.streams, 1)
    assert [t // MS for t in starts.tolist()] == [0, 5, 105]  # never later than the first token that came


def test_one_stream_at_a_time_is_one_served_and_the_wait_is_the_queue() -> None:
    view = build_view(run_of(one_after_another()))
    assert view.service.served == 1
    time = split_requests(view, split_window(view))
    # Request k starts when k-1 ends, at 95 + 100 (k-1): waits sum to 95*9 + 100*(0+...+8) = 4455 ms.
    assert time.queue_s == pytest.approx(4.455)
    assert time.decode_s == pytest.approx(10 * 0.09)


def test_a_jitter_overlap_is_not_concurrency() -> None:
    streams = [steady(0, 5 + 100 * k, 10, 10) for k in range(10)]
    streams = [(send, [*chunks[:-1], chunks[-1] + 6]) for send, chunks in streams]  # last token 1 ms late
    view = build_view(run_of(streams))
    assert view.service.served == 1 or view.activity.spans_ns[view.activity.decoding > 1].sum() >= 9 * MS


def test_answers_that_end_together_are_no_static_batch_where_the_engine_shows_an_empty_queue() -> None:
    """Groups of three, sent while those before decode, first tokens when these have ended: a batch, or prefill."""
    groups = [(30 * k, 30 * k + 40) for k in range(12)]
    run = run_of([steady(send + n, first + n, 2, 4 + n) for send, first in groups for n in range(3)], slots=32)
    unseen = build_view(run)
    assert unseen.service.refilled is not None
    assert unseen.service.refilled < 0.5
    assert (unseen.service.start_ns > unseen.streams.send_ns).any()
    gauges = tuple(EngineSample(t_ns=30 * k * MS, running=3.0, waiting=0.0) for k in range(12))
    view = build_view(msgspec.structs.replace(run, engine_samples=gauges))
    assert view.service.refilled is None
    assert view.service.start_ns.tolist() == view.streams.send_ns.tolist()


def test_answers_in_one_chunk_show_no_concurrency() -> None:
    assert build_view(run_of([(0, [10]), (0, [10]), (5, [20])])).service.served is None


def test_turnaround_follows_the_answer_before_with_one_seat_and_not_behind_a_serial_stage() -> None:
    lengths = [3, 9, 4, 12, 6, 2, 10, 5, 8, 3]
    seat, t = [], 5
    for n in lengths:
        seat.append(steady(0, t, n, 10))
        t += 10 * (n - 1) + 5
    stage = [steady(0, 200 * (k + 1), n, 20) for k, n in enumerate(lengths)]
    assert turnaround_slope(build_view(run_of(seat))) == pytest.approx(1.0, abs=0.01)
    assert turnaround_slope(build_view(run_of(stage))) == pytest.approx(0.0, abs=0.01)


def test_a_static_batch_refills_no_seat_and_a_continuous_one_refills_all() -> None:
    static, continuous = [], []
    for batch in range(6):
        start = 5 + 300 * batch
        static += [steady(0, start, 10, 10), steady(0, start, 30, 10)]
    ends = [0, 0]
    for k in range(12):
        seat = 0 if ends[0] <= ends[1] else 1
        count = 10 if k % 2 else 30
        continuous.append(steady(0, ends[seat] + 5, count, 10))
        ends[seat] += 5 + 10 * (count - 1)
    assert build_view(run_of(static)).service.refilled == 0.0
    assert build_view(run_of(continuous)).service.refilled == 1.0


def curve_view(base_ms: int, each_ms: int, most: int) -> View:
    """n streams decode together for 40 steps of base + n * each, for n in 1 ... most, apart from each other."""
    streams, t = [], 0
    for n in range(1, most + 1):
        gap = base_ms + n * each_ms
        streams += [steady(t, t, 40, gap) for _ in range(n)]
        t += 40 * gap + 1000
    return build_view(run_of(streams, slots=64))


@pytest.mark.parametrize(
    ("base_ms", "each_ms", "cause"),
    [(20, 0, "memory_bandwidth_bound"), (20, 1, "memory_bandwidth_bound"), (2, 8, "compute_bound")],
)
def test_the_step_curve_gives_back_its_line_and_names_its_kind(base_ms: int, each_ms: int, cause: str) -> None:
    view = curve_view(base_ms, each_ms, 8)
    assert view.steps is not None
    assert view.steps.base_s == pytest.approx(base_ms / 1e3, abs=1e-6)
    assert view.steps.per_sequence_s == pytest.approx(each_ms / 1e3, abs=1e-6)
    (finding,) = find_decode(view, split_requests(view, split_window(view)))
    assert finding.cause == cause


def test_roofline_floors_are_bytes_over_bandwidth_and_flops_over_peak() -> None:
    assert decode_floor_s(MODEL, GPU, sequences=1) == pytest.approx(14e9 / 1.4e12)
    assert prefill_floor_s(MODEL, GPU, 1000) == pytest.approx(2 * 7e9 * 1000 / 1e15)
    moe = msgspec.structs.replace(MODEL, active_parameters=700_000_000)
    assert decode_floor_s(moe, GPU, sequences=2) == pytest.approx(0.2 * 14e9 / 1.4e12)
    assert decode_floor_s(moe, GPU, sequences=50) == pytest.approx(14e9 / 1.4e12)
    assert decode_floor_s(None, GPU, sequences=1) is None


@pytest.mark.parametrize(
    ("gap_ms", "cause"), [(12, "memory_bandwidth_bound"), (60, "launch_bound")]
)  # the floor is 10 ms: 14 GB at 1.4 TB/s
def test_one_level_of_concurrency_is_judged_by_the_roofline(gap_ms: int, cause: str) -> None:
    run = run_of([steady(2000 * k, 2000 * k + 1, 25, gap_ms) for k in range(6)], slots=8)
    view = build_view(run, model=MODEL, device=GPU)
    (finding,) = find_decode(view, split_requests(view, split_window(view)))
    assert finding.cause == cause
    assert f"{gap_ms / 10:.1f}x" in finding.evidence


@pytest.mark.parametrize(("prompt", "cause"), [(100, "launch_bound"), (10_000, "compute_bound")])
def test_prefill_is_judged_by_its_arithmetic_and_a_reading_of_the_weights(prompt: int, cause: str) -> None:
    """First tokens after 200 ms. The weights take 10 ms; 100 tokens 1.4 ms more, 17.5x in all; 10,000 take 140 more."""
    run = run_of([steady(400 * k, 400 * k + 200, 3, 10) for k in range(10)], slots=8)
    traces = tuple(msgspec.structs.replace(trace, input_tokens=prompt) for trace in run.traces)
    found = diagnose(msgspec.structs.replace(run, traces=traces), model=MODEL, device=GPU)
    assert found.verdict == cause
    assert ("17.5x the 114 ms" in found.reason) is (cause == "launch_bound")


def test_without_model_and_device_one_level_of_concurrency_stays_undecided() -> None:
    view = build_view(run_of([steady(2000 * k, 2000 * k + 1, 25, 12) for k in range(6)], slots=8))
    (finding,) = find_decode(view, split_requests(view, split_window(view)))
    assert finding.cause == "undecided"
    assert "concurrency did not vary" in finding.evidence


def test_a_clock_that_ran_backwards_gives_no_negative_time() -> None:
    run = run_of([(100, [90, 95, 105])])
    view = build_view(run)
    assert np.all(view.streams.first_ns >= view.streams.send_ns)
    assert np.all(view.streams.last_ns >= view.streams.first_ns)
