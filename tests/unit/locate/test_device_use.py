"""What the driver's readings add to a diagnosis: the first cut of the seeds, from planted readings."""

import msgspec
import pytest

from powerband.locate.device_use import read_device_use
from powerband.locate.diagnose import diagnose
from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.sample import DeviceSample, EngineSample
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload

NS = 1_000_000_000


def readings(busy: float, memory: float, *, card: int = 0, count: int = 20) -> tuple[DeviceSample, ...]:
    return tuple(
        DeviceSample(
            t_ns=k * NS // 2,
            index=card,
            name="H200",
            busy_ratio=busy,
            memory_busy_ratio=memory,
            power_w=300.0,
            power_limit_w=700.0,
            sm_clock_hz=1.2e9,
            max_sm_clock_hz=1.8e9,
            throttle=("software power cap",) if k % 2 else (),
        )
        for k in range(count)
    )


def steady_decode(samples: tuple[DeviceSample, ...]) -> Run:
    """Ten requests one after the other, 100 tokens each at 10 ms: concurrency never varies."""
    traces = tuple(
        RequestTrace(
            index=k,
            t_sched_ns=k * NS,
            t_send_ns=k * NS,
            t_chunks_ns=tuple(k * NS + (n + 1) * 10_000_000 for n in range(98)),
            chunk_tokens=(1,) * 98,
            t_end_ns=k * NS + 98 * 10_000_000,
            input_tokens=10,
            output_tokens_asked=98,
            status="ok",
        )
        for k in range(10)
    )
    spec = RequestSpec(offset_ns=0, input_tokens=10, output_tokens=98)
    return Run(
        run_id="r",
        basis="measured",
        config=EngineConfig(engine="vllm", model=""),
        effective=Missing(missing="-"),
        workload=Workload(requests=(spec,) * 10, source="hand-made"),
        traces=traces,
        end_ns=10 * NS,
        device_samples=samples,
    )


@pytest.mark.parametrize(
    ("busy", "memory", "cause"),
    [
        (0.25, 0.1, "launch_bound"),
        (0.98, 0.7, "memory_bandwidth_bound"),
        (0.98, 0.05, "undecided"),
        (0.65, 0.6, "undecided"),
    ],
)
def test_use_of_the_card_decides_where_concurrency_did_not_vary(busy: float, memory: float, cause: str) -> None:
    found = diagnose(steady_decode(readings(busy, memory)))
    assert found.verdict == cause, found.reason
    assert found.gpu_busy_ratio == pytest.approx(busy)
    assert "device readings" in found.sources


def sweep(base_ms: int, each_ms: int, busy: float) -> Run:
    """1 to 4 sequences for 40 steps of base + n * each, one group after the other, on a card that is so busy."""
    traces: list[RequestTrace] = []
    t = 0
    for n in range(1, 5):
        gap = (base_ms + n * each_ms) * 1_000_000
        chunks = tuple(t + gap * (k + 1) for k in range(40))
        traces += [
            RequestTrace(
                index=len(traces) + k,
                status="ok",
                input_tokens=10,
                output_tokens_asked=40,
                t_sched_ns=t,
                t_send_ns=t,
                t_end_ns=chunks[-1],
                t_chunks_ns=chunks,
                chunk_tokens=(1,) * 40,
            )
            for k in range(n)
        ]
        t = chunks[-1]
    run = steady_decode(readings(busy, 0.1, count=7))
    return msgspec.structs.replace(run, traces=tuple(traces), end_ns=t)


@pytest.mark.parametrize(
    ("base_ms", "each_ms", "busy", "cause"),
    [
        (20, 0, 0.9, "memory_bandwidth_bound"),
        (20, 0, 0.3, "launch_bound"),  # 20 ms whatever is decoded, 14 of them without a kernel
        (2, 8, 0.9, "compute_bound"),
        (2, 8, 0.3, "scheduler_bound"),  # it grows with the sequences, and not on the card
    ],
)
def test_a_card_that_waits_overrules_the_step_curve(base_ms: int, each_ms: int, busy: float, cause: str) -> None:
    found = diagnose(sweep(base_ms, each_ms, busy))
    assert found.verdict == cause, found.reason


@pytest.mark.parametrize(("busy", "cause"), [(0.9, "compute_bound"), (0.3, "launch_bound")])
def test_prompts_on_a_card_that_waits_are_not_arithmetic(busy: float, cause: str) -> None:
    """Ten prompts one after the other, 0.9 s each to the first token; seen with experts whose steps have no graph."""
    traces = tuple(
        RequestTrace(
            index=k,
            status="ok",
            input_tokens=500,
            output_tokens_asked=2,
            t_sched_ns=k * NS,
            t_send_ns=k * NS,
            t_end_ns=(k + 1) * NS,
            t_chunks_ns=(k * NS + 9 * NS // 10, (k + 1) * NS),
            chunk_tokens=(1, 1),
        )
        for k in range(10)
    )
    found = diagnose(msgspec.structs.replace(steady_decode(readings(busy, 0.1)), traces=traces))
    assert found.verdict == cause, found.reason


def test_readings_with_idle_time_between_requests_say_nothing_of_steps() -> None:
    """The same steps, and as much time without any request: the card's 30 % are then 60 % of each step."""
    busy = sweep(20, 0, 0.3)
    idle = msgspec.structs.replace(busy, end_ns=2 * busy.end_ns)
    assert "launch_bound" not in {finding.cause for finding in diagnose(idle).findings}


def test_without_readings_nothing_is_claimed_of_the_card() -> None:
    found = diagnose(steady_decode(()))
    assert found.gpu_busy_ratio is None
    assert any("the device itself" in line for line in found.unseen)


def test_means_by_hand() -> None:
    idle_neighbour = readings(0.0, 0.0, card=1)
    use = read_device_use((*readings(0.9, 0.5), *idle_neighbour))
    assert use is not None
    assert use.cards == 1
    assert use.busy_ratio == pytest.approx(0.9)
    assert use.clock_ratio == pytest.approx(2 / 3)
    assert use.throttle == (("software power cap", 0.5),)
    assert "300 of 700 W" in use.seen
    assert "clocks held back: software power cap in 50 % of the readings" in use.seen


def test_two_readings_say_nothing() -> None:
    assert read_device_use(readings(0.9, 0.5, count=2)) is None


def test_a_watched_engine_whose_card_waits_is_launch_bound() -> None:
    engine = tuple(EngineSample(t_ns=k * NS // 2, running=4.0, waiting=0.0) for k in range(20))
    watched = msgspec.structs.replace(
        steady_decode(readings(0.3, 0.1)), traces=(), engine_samples=engine, workload=Workload(requests=(), source="-")
    )
    found = diagnose(watched)
    assert found.verdict == "launch_bound", found.reason
    assert found.findings[0].share == pytest.approx(0.7)
