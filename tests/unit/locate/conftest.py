"""A little discrete-event engine of the tests' own, so that a diagnosis is judged on traffic whose cause is known."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.sample import EngineSample
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload

NS = 1_000_000_000


@dataclass
class Plant:
    """What is planted; times in seconds. ``gauges`` False hides the engine's metrics."""

    slots: int = 8
    base_s: float = 0.010
    per_sequence_s: float = 0.0005
    prefill_tokens_per_s: float = 4000.0
    chunk_tokens: int = 512
    kv_tokens: int = 10**9
    by_step: bool = False  # let in only what the step has room for, as vLLM does
    tokenizer_s: float = 0.0
    static: bool = False
    prefix_cache: bool = False
    gauges: bool = True
    jitter: float = 0.02
    sample_s: float = 0.1
    seed: int = 0


@dataclass(eq=False)
class _Job:
    index: int
    spec: RequestSpec
    ready_s: float = 0.0
    prefilled: int = 0
    to_prefill: int = 0
    times_s: list[float] = field(default_factory=list)


class _Engine:
    """Step by step: let requests in, prefill up to a chunk, one token for each sequence whose prompt is done."""

    def __init__(self, workload: Workload, plant: Plant) -> None:
        self.plant, self.random = plant, random.Random(plant.seed)
        self.jobs = [_Job(i, spec, spec.offset_ns / NS) for i, spec in enumerate(workload.requests)]
        free = 0.0
        for job in self.jobs:
            if plant.tokenizer_s:
                free = max(free, job.ready_s) + plant.tokenizer_s
                job.ready_s = free
        self.now = 0.0
        self.todo, self.running = list(self.jobs), list[_Job]()
        self.seen_prefixes: set[int] = set()
        self.batch_left = 0
        self.prefill_s = self.decode_s = 0.0
        self.prompt_tokens = self.cached_tokens = self.steps = 0
        self.samples: list[EngineSample] = []

    def run(self) -> None:
        while self.todo or self.running:
            self.admit()
            if not self.running:
                self.sample_until(self.todo[0].ready_s)
                self.now = self.todo[0].ready_s
                continue
            self.step()
        self.sample_until(self.now + 2 * self.plant.sample_s)

    def admit(self) -> None:
        if self.running and self.plant.static:
            return
        held = sum(job.spec.input_tokens + job.spec.output_tokens for job in self.running)
        while self.todo and self.todo[0].ready_s <= self.now and len(self.running) < self.plant.slots:
            job = self.todo[0]
            need = job.spec.input_tokens + job.spec.output_tokens
            if self.running and held + need > self.plant.kv_tokens:
                return
            left = sum(one.to_prefill - one.prefilled for one in self.running)
            if self.plant.by_step and left >= self.plant.chunk_tokens:
                return
            held += need
            job.to_prefill = job.spec.input_tokens
            if self.plant.prefix_cache and job.spec.prefix_id in self.seen_prefixes:
                job.to_prefill = max(job.spec.input_tokens - job.spec.prefix_tokens, 1)
                self.cached_tokens += job.spec.input_tokens - job.to_prefill
            if job.spec.prefix_id is not None:
                self.seen_prefixes.add(job.spec.prefix_id)
            self.running.append(self.todo.pop(0))

    def step(self) -> None:
        plant, left = self.plant, self.plant.chunk_tokens
        decoding = [job for job in self.running if job.times_s]
        chunk: dict[_Job, int] = {}
        for job in self.running:
            take = min(left, job.to_prefill - job.prefilled)
            if take > 0:
                chunk[job] = take
                left -= take
        prefill_s = sum(chunk.values()) / plant.prefill_tokens_per_s
        wobble = 1 + plant.jitter * self.random.uniform(-1, 1)
        decode_s = (plant.base_s + plant.per_sequence_s * len(decoding)) * wobble
        self.sample_until(self.now + prefill_s + decode_s)
        self.now += prefill_s + decode_s
        self.prefill_s += prefill_s
        self.decode_s += decode_s
        self.steps += 1
        for job, take in chunk.items():
            job.prefilled += take
            self.prompt_tokens += take
        for job in list(self.running):
            if job.prefilled >= job.to_prefill:
                job.times_s.append(self.now)
                if len(job.times_s) >= job.spec.output_tokens:
                    self.running.remove(job)

    def sample_until(self, until_s: float) -> None:
        period = self.plant.sample_s
        while len(self.samples) * period <= until_s:
            t = len(self.samples) * period
            held = sum(job.prefilled + len(job.times_s) for job in self.running)
            self.samples.append(
                EngineSample(
                    t_ns=round(t * NS),
                    running=float(len(self.running)),
                    waiting=float(sum(job.ready_s <= t for job in self.todo)),
                    kv_used_ratio=held / self.plant.kv_tokens if self.plant.kv_tokens < 10**9 else Missing(missing="-"),
                    prompt_tokens_total=float(self.prompt_tokens),
                    cached_prompt_tokens_total=float(self.cached_tokens),
                    prefill_seconds_total=self.prefill_s,
                    decode_seconds_total=self.decode_s,
                    steps_total=float(self.steps),
                )
            )


def serve_workload(workload: Workload, plant: Plant) -> Run:
    """The run that a client on the same clock would have recorded."""
    engine = _Engine(workload, plant)
    engine.run()
    traces = tuple(
        RequestTrace(
            index=job.index,
            status="ok",
            input_tokens=job.spec.input_tokens,
            output_tokens_asked=job.spec.output_tokens,
            t_sched_ns=job.spec.offset_ns,
            t_send_ns=job.spec.offset_ns,
            t_end_ns=round(job.times_s[-1] * NS),
            t_chunks_ns=tuple(round(t * NS) for t in job.times_s),
            chunk_tokens=(1,) * len(job.times_s),
        )
        for job in engine.jobs
    )
    return Run(
        run_id="planted",
        basis="simulated",
        config=EngineConfig(engine="planted", model="none"),
        effective=Missing(missing="a test's engine"),
        workload=workload,
        traces=traces,
        end_ns=max(trace.t_end_ns or 0 for trace in traces),
        engine_samples=tuple(engine.samples) if plant.gauges else (),
    )


def poisson_workload(
    rate_per_s: float,
    count: int,
    *,
    seed: int = 0,
    prompt: tuple[int, int] = (20, 60),
    answer: tuple[int, int] = (20, 60),
    long_prompt: tuple[float, int] = (0.0, 0),
    prefix_tokens: int = 0,
) -> Workload:
    """Poisson arrivals, uniform lengths; ``long_prompt`` (share, tokens) makes some prompts long."""
    dice = random.Random(seed)
    now, requests = 0.0, []
    for _ in range(count):
        now += dice.expovariate(rate_per_s)
        tokens = long_prompt[1] if dice.random() < long_prompt[0] else dice.randint(*prompt)
        prefix = (dice.randrange(3), prefix_tokens) if prefix_tokens else (None, 0)
        requests.append(
            RequestSpec(
                offset_ns=round(now * NS),
                input_tokens=tokens + prefix[1],
                output_tokens=dice.randint(*answer),
                prefix_id=prefix[0],
                prefix_tokens=prefix[1],
            )
        )
    return Workload(requests=tuple(requests), source="test", seed=seed)


@pytest.fixture
def serve() -> Callable[[Workload, Plant], Run]:
    return serve_workload


@pytest.fixture
def plant() -> type[Plant]:
    return Plant


@pytest.fixture
def poisson() -> Callable[..., Workload]:
    return poisson_workload
