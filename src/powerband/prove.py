"""Bisection: run the tests that prove or refute what a diagnosis suspects, one changed thing at a time.

Windows of the same traffic are compared in pairs. The base engine is started once and serves its own windows and every
test that needs no restart; each test of a setting starts the engine anew with that setting alone changed.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from powerband.engines.base import Engine, RunningEngine
from powerband.load.target import Target
from powerband.locate.bisect import Kind, Metric, Test, faster, halved, long_prompts, plan_tests, unshared, without
from powerband.locate.diagnose import diagnose
from powerband.locate.proof import (
    Level,
    apply_proofs,
    growing_share,
    judge_halved,
    judge_removal,
    judge_sweep,
    judge_unchanged,
)
from powerband.measure import observe, target_of
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError, RequestError
from powerband.records.finding import Cause, Diagnosis, Finding, Proof
from powerband.records.hardware import DeviceSpec
from powerband.records.metrics import tpot_s, ttft_s
from powerband.records.model import ModelSpec
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.units import format_duration, percent
from powerband.records.value import Interval, Missing
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.run_dir import write_run
from powerband.verify.student import t_quantile
from powerband.warm_up import warm_up

LEVEL = 0.9
_SWEEP = (1, 2, 4, 8)
_WINDOWS: dict[Kind, int] = {"text": 2, "sweep": len(_SWEEP)}  # of a round; of other tests one
_SWEEP_INPUT, _SWEEP_OUTPUT, _SWEEP_TURNS = 16, 32, 2
_METRICS: dict[Metric, str] = {
    "request": "mean request time in s",
    "first_token": "mean time to first token in s",
    "short_first_token": "mean time to first token of short prompts in s",
}
_TOO_FEW = Missing(missing="fewer than 2 usable pairs of windows")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tested: an engine, to be started with ``config`` (``openai`` attaches to one, which stays as it is)."""

    config: EngineConfig
    workload: Workload
    folder: Path  # where runs are kept
    name: str  # of this session, in run ids
    command: str
    cut_s: float
    engine: Engine
    fixed: frozenset[str] = frozenset()  # knobs that the user set: completing a config leaves them alone
    model: ModelSpec | None = None
    device: DeviceSpec | None = None
    slo: Slo | None = None
    repeats: int = 3
    tell: Callable[[str], None] = lambda line: None


@dataclass(frozen=True, slots=True)
class _Live:
    """One engine that answers, and how it is spoken to."""

    running: RunningEngine
    target: Target
    config: EngineConfig


def prove(subject: Subject) -> Diagnosis:
    """Diagnose the traffic on the base engine, then test what was found; each finding's status says what came of it.

    Raises EngineError or RequestError where the base engine does not start, EngineError where it dies; a test whose
    engine does not start is a note.
    """
    proofs: list[Proof] = []
    with _started(subject, subject.config) as base:
        least = _in_words(subject, sum(_WINDOWS.values()))
        subject.tell(f"the traffic as it is: {_in_words(subject, 1)}; after it come at least {least}")
        before = _windows(subject, base, subject.workload, "base")
        usable = [run for run in before if _usable(run)]
        if not usable:
            return diagnose(before[0], slo=subject.slo)  # says why nothing can be said
        found = diagnose(usable[0], model=subject.model, device=subject.device, slo=subject.slo)
        engine = subject.engine
        tests, notes = plan_tests(found, base.config, engine.knobs(), subject.workload, restartable=engine.restartable)
        restarts = sum(test.restart for test in tests)
        more = f", and {restarts} starts of the engine" if restarts else ""
        windows = sum(_WINDOWS.get(test.kind, 1) for test in tests)
        subject.tell(f"what may be behind it, {len(tests)} tests: {_in_words(subject, windows)}{more}")
        for test in (test for test in tests if not test.restart):
            subject.tell(f"{test.name}: {test.change}")
            proofs += (
                _sweep(subject, base, test) if test.kind == "sweep" else _beside(subject, base, test, before, found)
            )
    for test in (test for test in tests if test.restart):
        subject.tell(f"{test.name}: {test.change}, with a restart")
        proof, note = _restarted(subject, test, before, found)
        proofs += proof
        notes += note
    length = f"{subject.repeats} windows a side, compared in pairs; intervals at {percent(LEVEL)}"
    proved = apply_proofs(found, proofs)
    return msgspec.structs.replace(proved, notes=(*proved.notes, f"{len(proofs)} tests: {length}", *notes))


def _in_words(subject: Subject, windows: int) -> str:
    """How long so many windows take, each repeated: as long as the arrivals, without such until they are cut."""
    each_s = subject.workload.span_s or subject.cut_s
    count = windows * subject.repeats
    return f"{count} windows of {format_duration(each_s)}, about {format_duration(count * each_s)}"


@contextlib.contextmanager
def _started(subject: Subject, config: EngineConfig) -> Iterator[_Live]:
    """An engine with ``config``, warm; stopped at the end (one that was there before goes on)."""
    engine = subject.engine
    config = engine.complete(config, subject.workload, subject.fixed)
    reason = engine.refuses(config, subject.workload)
    if reason is not None:
        raise RequestError(f"the engine cannot serve this traffic so: {reason}", hint="see --set and --traffic")
    running = engine.start(config, subject.folder / f"{subject.name}-engine-{config.key}")
    target = target_of(engine, running)
    try:
        warm_up(running, target, subject.workload)
        yield _Live(running, target, config)
    finally:
        running.stop()


def _window(subject: Subject, live: _Live, workload: Workload, label: str, workers: int = 1) -> Run:
    """One window, kept on disk; one that others' work spoilt is taken once more."""
    for attempt in ("", "-again"):
        run = observe(
            live.running, live.target, live.config, workload, run_id=f"{subject.name}-{label}{attempt}",
            command=subject.command, cut_s=subject.cut_s, workers=workers,
        )  # fmt: skip
        write_run(subject.folder / run.run_id, run)
        if not run.contended:
            break
    return run


def _windows(subject: Subject, live: _Live, workload: Workload, label: str) -> list[Run]:
    return [_window(subject, live, workload, f"{label}-{k}") for k in range(subject.repeats)]


def _usable(run: Run) -> bool:
    return not run.contended and any(trace.t_chunks_ns for trace in run.traces)


def _beside(subject: Subject, live: _Live, test: Test, before: list[Run], found: Diagnosis) -> list[Proof]:
    """A test on the engine as it runs; for text and token ids the sides take turns, since both are cheap."""
    label = test.name.replace(" ", "-")
    workload, workers = subject.workload, 1
    if test.kind == "text":
        return _text_against_ids(subject, live, test, found)
    if test.kind == "rate":
        workload = faster(workload, 2.0)
    elif test.kind == "short":
        workload = without(workload, long_prompts(workload))
    elif test.kind == "prefix":
        workload = unshared(workload)
    elif test.kind == "prompts":
        workload = halved(workload)
    elif test.kind == "clients":
        workers = 2
    after = [_window(subject, live, workload, f"{label}-{k}", workers) for k in range(subject.repeats)]
    return [_compare(test, cause, before, after, found) for cause in test.causes]


def _text_against_ids(subject: Subject, live: _Live, test: Test, found: Diagnosis) -> list[Proof]:
    text = replace(live, target=replace(live.target, as_text=True))
    as_text, as_ids = [], []
    for k in range(subject.repeats):
        as_text.append(_window(subject, text, subject.workload, f"text-{k}"))
        as_ids.append(_window(subject, live, subject.workload, f"ids-{k}"))
    if not any("token ids" in note for note in as_ids[0].notes):
        return []  # the endpoint takes text alone: both sides were the same
    return [_compare(test, cause, as_text, as_ids, found) for cause in test.causes]


def _restarted(subject: Subject, test: Test, before: list[Run], found: Diagnosis) -> tuple[list[Proof], list[str]]:
    try:
        changed = replace(subject, fixed=subject.fixed | frozenset(test.knobs))
        with _started(changed, subject.config.replace(**test.knobs)) as live:
            after = _windows(subject, live, subject.workload, test.name.replace(" ", "-"))
    except (EngineError, RequestError) as error:
        return [], [f"{test.name} ({test.change}) could not be run: {error.message}"]
    return [_compare(test, cause, before, after, found) for cause in test.causes], []


def _compare(test: Test, cause: Cause, before: Sequence[Run], after: Sequence[Run], found: Diagnosis) -> Proof:
    """Pairs of windows, the k-th with the k-th; ``gain`` is how many times shorter the changed side is."""
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if _usable(a) and _usable(b)]
    values = [(measured_s(a, test.metric), measured_s(b, test.metric)) for a, b in pairs]
    logs = [math.log(a / b) for a, b in values if a > 0 and b > 0]
    gain, interval = _ratio(logs)
    finding = next((one for one in found.findings if one.cause == cause), None)
    if test.kind in ("rate", "prefix"):
        flipped = interval if isinstance(interval, Missing) else _inverse(interval)
        status, reason = judge_unchanged(1 / gain, flipped)
    elif test.kind == "prompts":
        status, reason = judge_halved(gain, interval)
    else:
        status, reason = judge_removal(0.0 if finding is None else _claim(finding, found), gain, interval)
    return Proof(
        test=test.name,
        cause=cause,
        change=test.change,
        metric=_METRICS[test.metric],
        before=statistics.fmean(a for a, _ in values) if values else 0.0,
        after=statistics.fmean(b for _, b in values) if values else 0.0,
        gain=gain,
        interval=None if isinstance(interval, Missing) else interval,
        status=status,
        reason=reason,
        run_ids=tuple(run.run_id for pair in pairs for run in pair),
    )


def _claim(finding: Finding, found: Diagnosis) -> float:
    """The share of the request time that the finding says could go."""
    return finding.share if finding.of == "request_time" or not found.request_breakdown else 0.0


def measured_s(run: Run, metric: Metric) -> float:
    """Mean seconds of the metric; a request that did not end counts as far as it came.

    In a closed loop the next request waits for the one before: there, seconds for each output token are compared.
    """
    if metric != "request":
        long = long_prompts(run.workload) if metric == "short_first_token" else frozenset()
        times = [value for trace in run.traces if trace.index not in long and (value := ttft_s(trace)) is not None]
        return statistics.fmean(times) if times else 0.0
    if run.workload.concurrency is not None:
        tokens = sum(trace.output_tokens for trace in run.traces)
        last = max((trace.t_chunks_ns[-1] for trace in run.traces if trace.t_chunks_ns), default=run.end_ns)
        begun = min((trace.t_sched_ns for trace in run.traces), default=0)  # before the clock's zero, as a rule
        return (last - begun) / 1e9 / tokens if tokens else 0.0
    ends = [(trace.t_end_ns or run.end_ns) - trace.t_sched_ns for trace in run.traces]
    return statistics.fmean(ends) / 1e9 if ends else 0.0


def _ratio(logs: Sequence[float]) -> tuple[float, Interval | Missing]:
    if not logs:
        return 1.0, _TOO_FEW
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), _TOO_FEW
    half = _half_width(logs)
    return math.exp(mean), Interval(low=math.exp(mean - half), high=math.exp(min(mean + half, 50.0)), level=LEVEL)


def _half_width(values: Sequence[float]) -> float:
    return t_quantile(LEVEL, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def _inverse(interval: Interval) -> Interval:
    return Interval(low=1 / interval.high, high=1 / interval.low, level=interval.level)


def _sweep(subject: Subject, live: _Live, test: Test) -> list[Proof]:
    """Short requests at 1, 2, 4 and 8 at once, in rounds; what a token costs and brings at each."""
    rounds: dict[int, list[Run]] = {n: [] for n in _SWEEP}
    for k in range(subject.repeats):
        for n in _SWEEP:
            rounds[n].append(_window(subject, live, _burst(n), f"sweep-{n}-{k}"))
    kept = [k for k in range(subject.repeats) if all(_usable(rounds[n][k]) for n in _SWEEP)]
    levels = [
        Level(
            n, tuple(_tpot(runs[k]) for k in kept), tuple(1 / max(measured_s(runs[k], "request"), 1e-9) for k in kept)
        )
        for n, runs in rounds.items()
    ]
    few, many = levels[0], levels[-1]
    grows = [growing_share(few, many, k) for k in range(len(kept))]
    gains = [math.log(after / before) for before, after in zip(few.tokens_per_s, many.tokens_per_s, strict=True)]
    ids = tuple(run.run_id for n in (few.sequences, many.sequences) for run in rounds[n])
    gain, of_gain = _ratio(gains)
    of_growth: Interval | Missing = _TOO_FEW
    if len(grows) > 1:
        middle, half = statistics.fmean(grows), _half_width(grows)
        of_growth = Interval(low=max(middle - half, 0.0), high=min(middle + half, 1.0), level=LEVEL)
    proofs = []
    for cause in test.causes:
        interval = of_gain if cause == "no_batching" else of_growth
        status, reason = judge_sweep(cause, levels, interval)
        proofs.append(
            Proof(
                test=test.name,
                cause=cause,
                change=f"{few.sequences} -> {many.sequences} requests at once",
                metric="s a token of one sequence",
                before=statistics.fmean(few.tpot_s or (0.0,)),
                after=statistics.fmean(many.tpot_s or (0.0,)),
                gain=gain,
                interval=None if isinstance(of_gain, Missing) else of_gain,
                status=status,
                reason=reason,
                run_ids=ids,
            )
        )
    return proofs


def _burst(n: int) -> Workload:
    one = RequestSpec(offset_ns=0, input_tokens=_SWEEP_INPUT, output_tokens=_SWEEP_OUTPUT)
    return Workload(requests=(one,) * (n * _SWEEP_TURNS), source=f"{n} at once", concurrency=n)


def _tpot(run: Run) -> float:
    times = [value for trace in run.traces if (value := tpot_s(trace)) is not None]
    return statistics.fmean(times) if times else 0.0
