"""Contention from host readings made by hand: 2 cores, readings of half a second."""

from hypothesis import given
from hypothesis import strategies as st

from powerband.locate.contention import assess_contention
from powerband.records.sample import HostSample
from powerband.records.value import Measured, Missing


def reading(
    other: float,
    *,
    engine: Measured = 1.0,
    steal: float = 0.0,
    client: float = 0.1,
    cores: int = 2,
    interval: float = 0.5,
) -> HostSample:
    return HostSample(
        t_ns=0, interval_s=interval, cores=cores, engine_cores=engine, client_cores=client, other_cores=other,
        steal_cores=steal, engine_rss_bytes=1.0, available_bytes=1,
    )  # fmt: skip


def test_a_quiet_machine_is_not_contended() -> None:
    result = assess_contention([reading(0.02)] * 10, 2)
    assert not result.contended
    assert "0.02 of 2 cores" in result.reason
    assert abs(result.other_cores - 0.02) < 1e-9


def test_a_neighbour_that_takes_a_core_all_the_time() -> None:
    result = assess_contention([reading(1.0)] * 10, 2)
    assert result.contended
    assert "short of 1.00 cores" in result.reason
    assert "2 threads" in result.reason


def test_a_neighbour_on_a_core_the_engine_does_not_need() -> None:
    assert not assess_contention([reading(1.0)] * 10, 1).contended
    assert not assess_contention([reading(1.0, cores=4)] * 10, 3).contended
    assert assess_contention([reading(1.0, cores=4, engine=3.0)] * 10, 4).contended


def test_a_brief_spike_is_tolerated_and_told() -> None:
    result = assess_contention([reading(1.0)] * 2 + [reading(0.0)] * 10, 2)
    assert not result.contended
    assert "2 brief spikes" in result.reason


def test_an_episode_of_a_third_of_the_run_is_not_brief() -> None:
    result = assess_contention([reading(1.0)] * 4 + [reading(0.0)] * 8, 2)
    assert result.contended
    assert "33 %" in result.reason


def test_steal_counts_as_taken() -> None:
    result = assess_contention([reading(0.0, steal=0.5)] * 10, 2)
    assert result.contended
    assert "hypervisor took 0.50" in result.reason


def test_readings_with_an_idle_engine_do_not_count() -> None:
    idle = [reading(1.9, engine=0.01)] * 20
    assert not assess_contention(idle, 2).contended
    assert assess_contention([*idle, *[reading(1.0)] * 4], 2).contended


def test_unknown_threads_need_a_full_machine() -> None:
    assert not assess_contention([reading(1.0, engine=0.3)] * 10, None).contended
    assert assess_contention([reading(1.0, engine=0.9)] * 10, None).contended


def test_an_engine_that_is_not_watched_counts_as_busy() -> None:
    assert assess_contention([reading(1.0, engine=Missing(missing="attached"))] * 5, 2).contended


def test_readings_shorter_than_the_tick_allows_are_left_out() -> None:
    assert not assess_contention([reading(2.0, interval=0.01)] * 5, 2).contended
    assert "no reading" in assess_contention([], 2).reason


def test_a_machine_that_stood_still_spoils_the_run() -> None:
    result = assess_contention([*[reading(0.0)] * 10, reading(0.0, interval=51.0), *[reading(0.0)] * 10], 2)
    assert result.contended
    assert "stood still for about 51 s" in result.reason
    slow_scrapes = [reading(0.0), *[reading(0.0, interval=2.5)] * 3] * 5
    assert not assess_contention(slow_scrapes, 2).contended
    assert not assess_contention([reading(0.0, interval=10.0)] * 5, 2).contended  # that is how they were taken


def test_an_engine_whose_process_is_not_known_is_not_taken_for_others() -> None:
    """A server on this machine that uses both cores itself: nothing says that somebody else took them."""
    unknown = Missing(missing="no engine process to watch")
    result = assess_contention([reading(1.9, engine=unknown)] * 10, None)
    assert not result.contended
    assert "not known" in result.reason
    assert assess_contention([reading(0.0, engine=unknown, steal=0.5)] * 10, 2).contended


@given(
    st.lists(st.floats(0, 4), min_size=1, max_size=20),
    st.one_of(st.none(), st.integers(1, 8)),
    st.floats(0, 1),
)
def test_more_taken_is_never_less_contended(others: list[float], threads: int | None, more: float) -> None:
    before = assess_contention([reading(other) for other in others], threads)
    after = assess_contention([reading(other + more) for other in others], threads)
    assert before.contended <= after.contended
