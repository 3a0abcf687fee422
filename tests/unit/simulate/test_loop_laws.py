"""The fast simulator against one that takes every step, and the laws that any queue obeys."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.clock import Clock
from powerband.simulate.loop import simulate, to_traces
from powerband.simulate.replicas import Router, simulate_replicas
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime
from powerband.simulate.stepper import Stepper

StepOf = Callable[..., StepTime]
S = 1_000_000_000
TERMS = {
    "overhead_s": 0.010,
    "token_s": 0.0004,
    "context_token_s": 0.00002,
    "pair_s": 0.000001,
}

requests_strategy = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=12
).map(sorted)


def brute_force(requests: list[tuple[int, int, int]], slots: int, budget: int) -> list[list[float]]:
    """Every step in turn, straight from the rules: decode one token each, then prompts first come first served."""
    waiting = [
        {"id": n, "at": at / 1000, "left": prompt, "cached": 0, "out": out}
        for n, (at, prompt, out) in enumerate(requests)
    ]
    running: list[dict[str, float]] = []
    given: list[list[float]] = [[] for _ in requests]
    now = 0.0
    while waiting or running:
        while waiting and waiting[0]["at"] <= now and len(running) < slots:
            running.append(waiting.pop(0))
        if not running:
            now = waiting[0]["at"]
            continue
        decoding = [r for r in running if not r["left"]]
        room = budget - len(decoding)
        duration = TERMS["overhead_s"] + TERMS["token_s"] * len(decoding)
        duration += TERMS["context_token_s"] * sum(r["cached"] + 1 for r in decoding)
        emitting = list(decoding)
        for r in [r for r in running if r["left"]]:
            take = int(min(r["left"], room))
            room -= take
            duration += TERMS["token_s"] * take
            duration += TERMS["pair_s"] * sum(r["cached"] + n for n in range(1, take + 1))
            r["left"] -= take
            r["cached"] += take
            if take and not r["left"]:
                emitting.append(r)
        now += duration
        for r in decoding:
            r["cached"] += 1
        for r in emitting:
            given[int(r["id"])].append(now)
        running = [r for r in running if len(given[int(r["id"])]) < r["out"]]
    return given


def run_fast(
    requests: list[tuple[int, int, int]], step: StepTime, config: EngineConfig, limits: Limits
) -> tuple[RequestTrace, ...]:
    specs = tuple(RequestSpec(offset_ns=at * 1_000_000, input_tokens=p, output_tokens=o) for at, p, o in requests)
    return simulate(config, Workload(requests=specs, source="test"), step, limits).traces


@given(requests=requests_strategy, slots=st.integers(1, 5), budget=st.integers(6, 80))
@settings(max_examples=200, deadline=None)
def test_equal_to_brute_force(
    step_of: StepOf, config: EngineConfig, requests: list[tuple[int, int, int]], slots: int, budget: int
) -> None:
    traces = run_fast(requests, step_of(**TERMS), config, Limits(slots=slots, batch_tokens=budget))
    for trace, expected in zip(traces, brute_force(requests, slots, budget), strict=True):
        assert [t / S for t in trace.t_chunks_ns] == pytest.approx(expected, abs=2e-9)


@given(requests=requests_strategy, slots=st.integers(1, 5), blocks=st.integers(45, 90), size=st.sampled_from([1, 2, 4]))
@settings(max_examples=200, deadline=None)
def test_every_token_comes_whatever_is_preempted(
    step_of: StepOf, config: EngineConfig, requests: list[tuple[int, int, int]], slots: int, blocks: int, size: int
) -> None:
    limits = Limits(slots=slots, batch_tokens=32, kv_tokens=blocks * 2 - blocks * 2 % size, block_tokens=size)
    for trace in run_fast(requests, step_of(**TERMS), config, limits):
        assert trace.status == "ok"
        assert trace.output_tokens == trace.output_tokens_asked
        assert all(a < b for a, b in zip(trace.t_chunks_ns, trace.t_chunks_ns[1:], strict=False))


@given(requests=requests_strategy, slots=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_coarse_and_detailed_traces_agree(
    step_of: StepOf, config: EngineConfig, requests: list[tuple[int, int, int]], slots: int
) -> None:
    specs = tuple(RequestSpec(offset_ns=at * 1_000_000, input_tokens=p, output_tokens=o) for at, p, o in requests)
    workload = Workload(requests=specs, source="test")
    fine, coarse = (
        simulate(config, workload, step_of(**TERMS), Limits(slots=slots, batch_tokens=64), detailed=detailed)
        for detailed in (True, False)
    )
    for a, b in zip(fine.traces, coarse.traces, strict=True):
        assert (a.t_chunks_ns[0], a.t_chunks_ns[-1]) == (b.t_chunks_ns[0], b.t_chunks_ns[-1])
        assert a.output_tokens == b.output_tokens


class OneByOne(Stepper):
    """Takes each step by itself."""

    def _equal_steps(self, first_s: float, growth_s: float) -> int:
        return min(1, super()._equal_steps(first_s, growth_s))


@given(
    requests=requests_strategy,
    slots=st.integers(1, 5),
    budget=st.integers(6, 80),
    memory=st.one_of(st.none(), st.tuples(st.integers(45, 90), st.sampled_from([1, 2, 4]))),
    kind=st.sampled_from(["mixed", "ahead", "whole prompts", "prompts first", "static", "split rows"]),
    concurrency=st.sampled_from([None, None, 1, 3]),
    front=st.sampled_from([(0.0, 0.0), (0.0031, 0.0002), (0.02, 0.003)]),
)
@settings(max_examples=200, deadline=None)
def test_equal_steps_at_once_are_as_one_by_one(
    step_of: StepOf,
    requests: list[tuple[int, int, int]],
    slots: int,
    budget: int,
    memory: tuple[int, int] | None,
    kind: str,
    concurrency: int | None,
    front: tuple[float, float],
) -> None:
    blocks, size = memory if memory is not None and kind != "split rows" else (0, 1)
    limits = Limits(
        slots=slots,
        batch_tokens=max(budget, 66) if kind == "whole prompts" else budget,
        batching="static" if kind == "static" else "continuous",
        chunked=kind != "whole prompts",
        kv_tokens=blocks * 2 - blocks * 2 % size or None,
        block_tokens=size,
        ahead=kind == "ahead",
        prompts_first=kind == "prompts first",
        split_rows=kind == "split rows",
    )
    step = step_of(**TERMS, front_request_s=front[0], front_token_s=front[1], request_s=0.023)
    # No step ends in the very nanosecond in which a request comes or is ready.
    specs = [RequestSpec(offset_ns=at * 1_000_000 + 137, input_tokens=p, output_tokens=o) for at, p, o in requests]
    fast, slow = (
        kind_of_stepper(specs, concurrency, Clock(step), limits, float("inf"))
        for kind_of_stepper in (Stepper, OneByOne)
    )
    for stepper in (fast, slow):
        stepper.run()
    assert fast.preemptions == slow.preemptions
    for a, b in zip(*(to_traces(stepper, stepper.end_s, True) for stepper in (fast, slow)), strict=True):
        assert [t / S for t in a.t_chunks_ns] == pytest.approx([t / S for t in b.t_chunks_ns], abs=5e-9)


def poisson(seed: int, count: int, rate_per_s: float) -> list[tuple[int, int, int]]:
    draw = random.Random(seed)
    at_ms = 0.0
    made = []
    for _ in range(count):
        at_ms += draw.expovariate(rate_per_s) * 1000
        made.append((round(at_ms), draw.randint(1, 60), draw.randint(1, 25)))
    return made


def test_littles_law(step_of: StepOf, config: EngineConfig) -> None:
    # Mean number in the system (integral over time, counted by events) = arrival rate x mean time in the system.
    traces = run_fast(poisson(1, 3000, 5.0), step_of(**TERMS), config, Limits(slots=4, batch_tokens=64))
    events = sorted([(t.t_sched_ns, 1) for t in traces] + [(t.t_chunks_ns[-1], -1) for t in traces])
    area, inside, last = 0, 0, events[0][0]
    for t_ns, change in events:
        area += inside * (t_ns - last)
        inside, last = inside + change, t_ns
    window = last - events[0][0]
    mean_time = sum(t.t_chunks_ns[-1] - t.t_sched_ns for t in traces) / len(traces)
    assert area / window == pytest.approx(len(traces) / window * mean_time, rel=1e-9)


def test_one_slot_conserves_work(step_of: StepOf, config: EngineConfig) -> None:
    # With one slot the busy time is the sum of the service times, whatever the arrivals.
    requests = [(0, 10, 3), (0, 20, 5), (1, 30, 4)]
    traces = run_fast(requests, step_of(overhead_s=0.1), config, Limits(slots=1, batch_tokens=100))
    assert max(t.t_chunks_ns[-1] for t in traces) / S == pytest.approx(0.1 * (3 + 5 + 4))


def test_same_input_same_run(step_of: StepOf, config: EngineConfig) -> None:
    requests = poisson(7, 400, 20.0)
    limits = Limits(slots=4, batch_tokens=64, kv_tokens=400, block_tokens=16)
    first, second = (run_fast(requests, step_of(**TERMS), config, limits) for _ in range(2))
    assert first == second


@given(requests=requests_strategy, slots=st.integers(1, 3), router=st.sampled_from(["round_robin", "least_loaded"]))
@settings(max_examples=60, deadline=None)
def test_one_replica_is_the_engine_itself(
    step_of: StepOf, config: EngineConfig, requests: list[tuple[int, int, int]], slots: int, router: Router
) -> None:
    specs = tuple(RequestSpec(offset_ns=at * 1_000_000, input_tokens=p, output_tokens=o) for at, p, o in requests)
    workload, limits = Workload(requests=specs, source="test"), Limits(slots=slots, batch_tokens=64)
    alone = simulate(config, workload, step_of(**TERMS), limits)
    routed = simulate_replicas(config, workload, step_of(**TERMS), limits, replicas=1, router=router)
    for a, b in zip(alone.traces, routed.traces, strict=True):
        assert [t / S for t in a.t_chunks_ns] == pytest.approx([t / S for t in b.t_chunks_ns], abs=2e-9)


def test_least_loaded_beats_round_robin_by_hand(step_of: StepOf, config: EngineConfig) -> None:
    # One long answer (10 steps of 1 s) and short ones (2 steps), 3 s apart. Round robin sends every second short one
    # behind the long one; the least loaded replica is always free.
    requests = [(0, 1, 10), (3000, 1, 2), (6000, 1, 2), (9000, 1, 2)]
    specs = tuple(RequestSpec(offset_ns=at * 1_000_000, input_tokens=p, output_tokens=o) for at, p, o in requests)
    workload, limits = Workload(requests=specs, source="test"), Limits(slots=1, batch_tokens=64)
    ends = {}
    routers: tuple[Router, ...] = ("round_robin", "least_loaded")
    for router in routers:
        run = simulate_replicas(config, workload, step_of(overhead_s=1.0), limits, replicas=2, router=router)
        ends[router] = [trace.t_chunks_ns[-1] // S for trace in run.traces]
    assert ends["round_robin"] == [10, 5, 12, 11]  # the third waits for the long one
    assert ends["least_loaded"] == [10, 5, 8, 11]


@given(requests=requests_strategy, replicas=st.integers(1, 4), deadline_ms=st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_replicas_lose_no_request(
    step_of: StepOf, config: EngineConfig, requests: list[tuple[int, int, int]], replicas: int, deadline_ms: int
) -> None:
    specs = tuple(RequestSpec(offset_ns=at * 1_000_000, input_tokens=p, output_tokens=o) for at, p, o in requests)
    workload, limits = Workload(requests=specs, source="test"), Limits(slots=2, batch_tokens=64)
    run = simulate_replicas(
        config, workload, step_of(**TERMS), limits, replicas=replicas, deadline_s=deadline_ms / 1000
    )
    assert [trace.index for trace in run.traces] == list(range(len(requests)))
    for trace, (at_ms, _, answer) in zip(run.traces, requests, strict=True):
        assert trace.t_sched_ns == at_ms * 1_000_000
        assert (trace.status == "ok") == (trace.output_tokens == answer)
        assert all(t <= run.end_ns + 1 for t in trace.t_chunks_ns)
