"""What the tests of a proof measure, from a hand-made run."""

import pytest

from powerband.prove import measured_s
from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload

MS = 1_000_000


def test_a_closed_loop_is_timed_from_its_first_request_wherever_the_clock_stands() -> None:
    """Two requests of 32 tokens one after the other in 128 ms, begun 100 ms before the clock's zero: 2 ms a token."""
    spec = RequestSpec(offset_ns=0, input_tokens=16, output_tokens=32)
    begun = (-100 * MS, -36 * MS)
    traces = tuple(
        RequestTrace(
            index=k,
            status="ok",
            input_tokens=16,
            output_tokens_asked=32,
            t_sched_ns=sent,
            t_send_ns=sent,
            t_end_ns=sent + 64 * MS,
            t_chunks_ns=tuple(sent + 2 * MS * (n + 1) for n in range(32)),
            chunk_tokens=(1,) * 32,
        )
        for k, sent in enumerate(begun)
    )
    run = Run(
        run_id="hand",
        basis="measured",
        config=EngineConfig(engine="hand", model="hand"),
        effective=Missing(missing="-"),
        workload=Workload(requests=(spec, spec), source="hand", concurrency=1),
        traces=traces,
        end_ns=28 * MS,
    )
    assert measured_s(run, "request") == pytest.approx(0.002)
