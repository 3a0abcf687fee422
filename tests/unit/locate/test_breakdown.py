"""The parts of the window sum to it exactly, whatever the traces; hand-made runs land where arithmetic says."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.locate.breakdown import split_window
from powerband.locate.diagnose import diagnose
from powerband.locate.request_time import split_requests
from powerband.locate.view import build_view
from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.sample import EngineSample, HostSample
from powerband.records.value import Missing
from powerband.records.workload import Workload

MS = 1_000_000
NONE = Missing(missing="none")


def make_run(
    traces: list[RequestTrace],
    end_ns: int,
    engine: tuple[EngineSample, ...] = (),
    host: tuple[HostSample, ...] = (),
) -> Run:
    return Run(
        run_id="hand",
        basis="measured",
        config=EngineConfig(engine="hand", model="hand"),
        effective=NONE,
        workload=Workload(requests=(), source="hand"),
        traces=tuple(traces),
        end_ns=end_ns,
        engine_samples=engine,
        host_samples=host,
    )


def neighbour(cores: int, engine_cores: float) -> HostSample:
    """A second in which other processes had one of the cores."""
    return HostSample(
        t_ns=1000 * MS,
        interval_s=1.0,
        cores=cores,
        engine_cores=engine_cores,
        client_cores=0.0,
        other_cores=1.0,
        steal_cores=0.0,
        engine_rss_bytes=NONE,
        available_bytes=1,
    )


def make_trace(index: int, sched: int, send: int | None, chunks: list[int], status: str = "ok") -> RequestTrace:
    return RequestTrace(
        index=index,
        status=status,  # type: ignore[arg-type]
        input_tokens=10,
        output_tokens_asked=len(chunks),
        t_sched_ns=sched,
        t_send_ns=send,
        t_end_ns=chunks[-1] if chunks else None,
        t_chunks_ns=tuple(chunks),
        chunk_tokens=(1,) * len(chunks),
    )


@st.composite
def traces(draw: st.DrawFn) -> RequestTrace:
    """Any trace a client could record, and some no client should: late sends, silent requests, equal instants."""
    sched = draw(st.integers(0, 2000)) * MS
    status = draw(st.sampled_from(["ok", "error", "dropped"]))
    if draw(st.integers(0, 9)) == 0:
        return make_trace(draw(st.integers(0, 99)), sched, None, [], "dropped")
    send = sched + draw(st.integers(0, 50)) * MS
    count = draw(st.integers(0, 12))
    gaps = draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    chunks: list[int] = []
    now = send
    for gap in gaps:
        now += gap * MS
        chunks.append(now)
    return make_trace(draw(st.integers(0, 99)), sched, send, chunks, status)


@st.composite
def samples(draw: st.DrawFn) -> EngineSample:
    number = st.one_of(st.just(NONE), st.floats(0, 1e6))
    return EngineSample(
        t_ns=draw(st.integers(0, 5000)) * MS,
        running=draw(number),
        waiting=draw(number),
        prefill_seconds_total=draw(number),
        kv_used_ratio=draw(st.one_of(st.just(NONE), st.floats(0, 1))),
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(traces(), min_size=1, max_size=40),
    st.lists(samples(), max_size=12),
    st.integers(0, 8000),
    st.floats(0, 4),
)
def test_parts_sum_to_the_window_exactly(
    rows: list[RequestTrace], engine: list[EngineSample], end_ms: int, others: float
) -> None:
    host = tuple(
        HostSample(
            t_ns=t * 1000 * MS,
            interval_s=1.0,
            cores=2,
            engine_cores=1.0,
            client_cores=0.1,
            other_cores=others,
            steal_cores=0.0,
            engine_rss_bytes=NONE,
            available_bytes=1,
        )
        for t in range(1, 4)
    )
    run = make_run(rows, end_ms * MS, tuple(engine), host)
    view = build_view(run)
    parts = split_window(view)
    first = min(row.t_sched_ns for row in rows)
    ends = [row.t_end_ns for row in rows if row.t_end_ns is not None]
    sends = [row.t_send_ns for row in rows if row.t_send_ns is not None]
    assert parts.window_ns == max(end_ms * MS, first, *ends, *sends) - first
    for ns in (parts.prefill_ns, parts.decode_ns, parts.host_ns, parts.no_work_ns, parts.client_ns, parts.unseen_ns):
        assert ns >= 0
    time = split_requests(view, parts)
    assert min(time.queue_s, time.host_s, time.prefill_s, time.decode_s, time.stalled_s) >= 0
    assert time.total_s == pytest.approx(view.streams.request_ns / 1e9, abs=1e-6)
    diagnose(run)  # must hold for any run: it raises nothing


def test_one_request_alone_splits_by_its_own_instants() -> None:
    # 10 ms late at the client, 100 ms to the first token, 30 tokens 10 ms apart, then 600 ms of nothing.
    chunks = [110 * MS + 10 * MS * k for k in range(31)]
    run = make_run([make_trace(0, 0, 10 * MS, chunks)], 1010 * MS)
    parts = split_window(build_view(run))
    assert parts.client_ns == 10 * MS
    assert parts.prefill_ns == 100 * MS
    assert parts.decode_ns == 300 * MS
    assert parts.no_work_ns == 600 * MS


def test_the_engines_own_prefill_seconds_separate_the_host_from_prefill() -> None:
    """20 requests, one after another: 50 ms on the host, 40 ms prefill with its 10 ms step, then 30 gaps of 10 ms."""
    rows, t = [], 0
    for k in range(20):
        first = t + 100 * MS
        rows.append(make_trace(k, t, t, [first + 10 * MS * j for j in range(31)]))
        t = first + 310 * MS
    engine = tuple(
        EngineSample(t_ns=round(t * k / 9), prefill_seconds_total=20 * 0.040 * k / 9, running=0.0, waiting=0.0)
        for k in range(10)
    )
    parts = split_window(build_view(make_run(rows, t, engine)))
    assert parts.prefill_ns == pytest.approx(20 * (40 + 10) * MS, rel=0.01)
    assert parts.host_ns == pytest.approx(20 * 50 * MS, rel=0.01)


def test_a_silent_server_is_unseen_and_not_prefill() -> None:
    run = make_run([make_trace(k, 0, 0, [], "dropped") for k in range(6)], 2000 * MS)
    found = diagnose(run)
    assert {part.name: part.seconds for part in found.breakdown}["unseen"] == pytest.approx(2.0)
    assert found.verdict == "undecided"
    assert "only 0 of 6" in found.reason


def test_requests_cut_off_behind_work_that_goes_on_were_waiting_and_not_unanswered() -> None:
    """Five requests still wait at the deadline while another streams: the engine is at work, not silent."""
    streaming = make_trace(0, 0, 0, [100 * MS + 10 * MS * k for k in range(191)])
    waiting = [make_trace(k, 1000 * MS, 1000 * MS, [], "dropped") for k in range(1, 6)]
    view = build_view(make_run([streaming, *waiting], 2000 * MS))
    time = split_requests(view, split_window(view))
    assert time.unanswered_s == 0.0
    assert time.queue_s + time.host_s + time.prefill_s == pytest.approx(5 * 1.0 + 0.1, rel=0.01)


def test_other_processes_on_a_full_host_take_their_part_of_the_busy_time() -> None:
    chunks = [10 * MS * k for k in range(1, 101)]
    host = neighbour(cores=4, engine_cores=3.0)
    parts = split_window(build_view(make_run([make_trace(0, 0, 0, chunks)], 1000 * MS, host=(host,))))
    assert parts.contention_ns == pytest.approx(250 * MS, abs=2)  # one core of four, busy all the time


def test_a_stall_that_nothing_explains_is_unseen() -> None:
    chunks = [10 * MS * k for k in range(1, 51)]
    chunks += [chunks[-1] + 900 * MS + 10 * MS * k for k in range(50)]
    parts = split_window(build_view(make_run([make_trace(0, 0, 0, chunks)], chunks[-1])))
    assert parts.unseen_ns == pytest.approx(890 * MS, rel=0.01)


@pytest.mark.parametrize(("threads", "lost"), [(1, 0.0), (2, 0.5), (None, 0.5)])
def test_a_neighbour_takes_only_what_the_engine_needed(threads: int | None, lost: float) -> None:
    """A neighbour has one of two cores: an engine of one thread lost nothing, one of two lost a half."""
    host = neighbour(cores=2, engine_cores=1.0)
    run = make_run([make_trace(0, 0, 0, [10 * k * MS for k in range(1, 101)])], 1000 * MS, host=(host,))
    if threads is not None:
        run = msgspec.structs.replace(run, config=run.config.replace(n_threads=threads))
    parts = split_window(build_view(run))
    assert parts.contention_ns == pytest.approx(lost * 1000 * MS, abs=2)
