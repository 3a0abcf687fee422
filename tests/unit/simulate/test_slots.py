"""llama.cpp's slots: which one is taken, and what a pass computes together."""

from collections.abc import Callable

from powerband.records.config import EngineConfig
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
    table = SlotTable(4, warmed=0)
    assert [table.take() for _ in range(3)] == [3, 2, 1]
    table.release(2)
    table.release(3)
    assert [table.take() for _ in range(3)] == [0, 2, 3]  # never used, then in the order of release


def test_a_warm_up_of_four_in_pairs_as_a_servers_log_shows_it() -> None:
    # llama-server with 8 slots: the warm-up used 7 and 6, then 5 and 4; what came next got 3, 2, 1, 0, 6, 7, 4, 5.
    table = SlotTable(8)
    assert [table.take() for _ in range(8)] == [3, 2, 1, 0, 6, 7, 4, 5]


def test_scattered_slots_pay_for_a_pass_each(config: EngineConfig, step_of: Callable[..., StepTime]) -> None:
    step = step_of(weight_s=1.0)
    # Three at once get slots 3, 2 and 1; the one in slot 2 ends first, and 3 and 1 are no neighbours.
    workload = Workload(
        requests=tuple(RequestSpec(offset_ns=0, input_tokens=1, output_tokens=n) for n in (6, 3, 6)), source="test"
    )
    together = simulate(config, workload, step, Limits(slots=8, batch_tokens=64))
    split = simulate(config, workload, step, Limits(slots=8, batch_tokens=64, split_rows=True))
    assert [trace.t_chunks_ns[-1] / 1e9 for trace in together.traces] == [6.0, 3.0, 6.0]
    assert [trace.t_chunks_ns[-1] / 1e9 for trace in split.traces] == [9.0, 3.0, 9.0]  # 3 joint steps, 3 of two passes
    assert assign_slots(split.traces, 8) == [3, 2, 1]


def test_one_pool_for_all_slots_needs_no_neighbours() -> None:
    apart = EngineConfig(engine="llamacpp", model="m", knobs={"n_parallel": 8})
    assert limits_of(apart).split_rows is True
    assert limits_of(apart.replace(kv_unified=True)).split_rows is False
    assert limits_of(apart.replace(n_parallel=1)).split_rows is False
