"""llama.cpp's slots: which one is taken, and what a pass computes together."""

from collections.abc import Callable

from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.loop import simulate
from powerband.simulate.observe import assign_slots
from powerband.simulate.scheduler import Limits, limits_of
from powerband.simulate.slots import SlotTable, neighbours
from powerband.simulate.step_time import StepTime


def test_rows_of_neighbours() -> None:
    assert neighbours([0, 1, 2, 3]) == (4,)
    assert neighbours([6, 0, 3, 2]) == (2, 1, 1)
    assert neighbours([]) == ()


def test_the_slot_unused_for_longest_is_taken_and_of_equals_the_highest() -> None:
    table = SlotTable(4, warmed=())
    assert [table.take() for _ in range(3)] == [3, 2, 1]
    table.release(2)
    table.release(3)
    assert [table.take() for _ in range(3)] == [0, 2, 3]  # never used, then in the order of release


def test_a_warm_up_as_a_servers_log_shows_it() -> None:
    # llama-server with 8 slots: the warm-up used 7, then 6 and 5 together, 4, 3 and 2; what came next got these.
    table = SlotTable(8, warmed=(1, 2, 1, 1, 1))
    assert [table.take() for _ in range(8)] == [1, 0, 7, 5, 6, 4, 3, 2]
    assert SlotTable(4, warmed=(6,)).take() == 2  # 0 and 1 served the last two of a burst of six


def test_ends_of_one_step_are_released_by_their_slots_numbers() -> None:
    """A client sees the ends of a step in any order, and sends the next request in between."""

    def trace(index: int, sent_ms: int, last_ms: float) -> RequestTrace:
        times = (sent_ms + 50.0, sent_ms + 150.0, last_ms)
        return RequestTrace(
            index=index, status="ok", input_tokens=1, output_tokens_asked=3, t_sched_ns=sent_ms * 10**6,
            t_send_ns=sent_ms * 10**6, t_end_ns=round(last_ms * 1e6),
            t_chunks_ns=tuple(round(t * 1e6) for t in times), chunk_tokens=(1, 1, 1),
        )  # fmt: skip

    traces = [trace(0, 0, 252.0), trace(1, 0, 251.0), trace(2, 0, 250.0), trace(3, 251, 500.0), trace(4, 253, 500.0)]
    assert assign_slots(traces, 3, ()) == [2, 1, 0, 0, 1]


def test_scattered_slots_pay_for_a_pass_each(config: EngineConfig, step_of: Callable[..., StepTime]) -> None:
    step = step_of(weight_s=1.0)
    # Three at once get slots 2, 0 and 1; the one in slot 1 ends first, and 2 and 0 are no neighbours.
    workload = Workload(
        requests=tuple(RequestSpec(offset_ns=0, input_tokens=1, output_tokens=n) for n in (6, 6, 3)), source="test"
    )
    together = simulate(config, workload, step, Limits(slots=3, batch_tokens=64))
    split = simulate(config, workload, step, Limits(slots=3, batch_tokens=64, split_rows=True))
    assert [trace.t_chunks_ns[-1] / 1e9 for trace in together.traces] == [6.0, 6.0, 3.0]
    assert [trace.t_chunks_ns[-1] / 1e9 for trace in split.traces] == [9.0, 9.0, 3.0]  # 3 joint steps, 3 of two passes
    assert assign_slots(split.traces, 3) == [2, 0, 1]


def test_one_pool_for_all_slots_needs_no_neighbours() -> None:
    apart = EngineConfig(engine="llamacpp", model="m", knobs={"n_parallel": 8})
    assert limits_of(apart).split_rows is True
    assert limits_of(apart.replace(kv_unified=True)).split_rows is False
    assert limits_of(apart.replace(n_parallel=1)).split_rows is False
