"""A few minutes of self-measurement: one start of an engine, a suite of short loads, and what they say about a step.

The suite spans what a step time depends on: batches from 1 to all slots, prompts from short to long. The last piece is
ordinary traffic that no fit sees; predicting it says how far the fit can be believed.
"""

import math
import time
from collections.abc import Callable

import msgspec

from powerband.engines.base import Engine
from powerband.evaluate import judge
from powerband.load.traffic import build_workload
from powerband.measure import observe, target_of
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.run import Run, Trial
from powerband.records.value import Record
from powerband.records.workload import Workload
from powerband.simulate.scheduler import Limits
from powerband.stores.base import Store
from powerband.warm_up import in_flight, warm_up

MOST_BATCH = 64
ROUNDS = 3  # requests a client of a closed loop sends one after another
ALONE = 6  # requests of the pieces with one client
CHECK_LOAD = 0.6  # the held-out piece offers this share of what the largest batch served
CHECK_REQUESTS = 24
CHECK = "check"
SHORT_PROMPT, LONG_PROMPTS, ANSWER = 64, (256, 1024, 4096), 48


class Piece(Record):
    """A named load of the suite."""

    name: str
    workload: Workload


def build_suite(limits: Limits, longest_tokens: int, seed: int = 0) -> list[Piece]:
    """Closed loops of equal requests at 1, 2, 4 ... slots, then lone prompts of several lengths; 3 pieces at least.

    ``longest_tokens``: what prompt and answer may hold together. Raises RequestError where that is too little.
    """
    if longest_tokens < SHORT_PROMPT + ANSWER:
        raise RequestError(
            f"a sequence may hold {longest_tokens} tokens", hint=f"calibrating needs {SHORT_PROMPT + ANSWER}"
        )
    most = min(limits.slots, MOST_BATCH)
    batches = sorted({1, *(size for size in (2, 3, 4, 8, 16, 32, 64) if size < most), most})
    pieces = [
        Piece(
            name=f"batch-{batch}",
            workload=_loop(SHORT_PROMPT, ANSWER, batch, ALONE if batch == 1 else ROUNDS * batch, seed),
        )
        for batch in batches
    ]
    answer = 8
    prompts = [prompt for prompt in LONG_PROMPTS if prompt + answer <= longest_tokens]
    longest = longest_tokens - answer
    if longest > SHORT_PROMPT and longest < LONG_PROMPTS[-1] and longest not in prompts:
        prompts.append(longest)
    pieces += [
        Piece(name=f"prompt-{prompt}", workload=_loop(prompt, answer, 1, ALONE, seed + index + 1))
        for index, prompt in enumerate(prompts)
    ]
    return pieces


def build_check(served_per_s: float, longest_tokens: int, seed: int = 0) -> Piece:
    """Ordinary traffic: lengths that vary, arrivals at random, below what the engine can take."""
    prompt = min(2 * SHORT_PROMPT, (longest_tokens - ANSWER) // 2)
    spec = (
        f"in=lognormal({_log(prompt)},0.5,8..{longest_tokens - 2 * ANSWER}),"
        f"out=lognormal({_log(ANSWER)},0.4,4..{2 * ANSWER}),arrivals=poisson({CHECK_LOAD * served_per_s:.4g}/s)"
    )
    return Piece(name=CHECK, workload=build_workload(spec, requests=CHECK_REQUESTS, seed=seed))


def calibrate(
    engine: Engine,
    config: EngineConfig,
    limits: Limits,
    *,
    longest_tokens: int,
    store: Store,
    session_id: str,
    command: str,
    budget_s: float,
    seed: int = 0,
    say: Callable[[str], None],
) -> tuple[dict[str, Run], list[str]]:
    """Start the engine once, run suite and check against it; every run is stored the moment it ends.

    Gives the usable runs by name, and in words what was left out. Raises EngineError where the engine fails.
    """
    suite = build_suite(limits, longest_tokens, seed)
    began, runs = time.monotonic(), dict[str, Run]()
    notes: list[str] = []
    running = engine.start(config, store.run_folder(f"{session_id}.start"))
    try:
        target = target_of(engine, running)
        widest = max((piece.workload for piece in suite), key=in_flight)
        notes += warm_up(running, target, widest).notes
        served_per_s = 0.0
        for place, piece in enumerate([*suite, None]):
            left_s = budget_s - (time.monotonic() - began)
            if left_s <= 0:
                notes.append(f"{budget_s:.3g} s were over before {piece.name if piece else CHECK}")
                break
            now = piece or build_check(served_per_s or 1.0, longest_tokens, seed + 100)
            run_id = f"{session_id}.{now.name}"
            started = time.monotonic()
            run = observe(running, target, config, now.workload, run_id=run_id, command=command, cut_s=left_s)
            trial = _trial(place + 1, run, time.monotonic() - started)
            store.add_trial(session_id, now.name, trial, run)
            say(f"{now.name:<14}{_outcome(trial)}")
            if trial.status == "done":
                runs[now.name] = run
                served_per_s = max(served_per_s, run.metrics().request_rate_per_s)
            else:
                notes.append(f"{now.name} left out: {trial.cause}")
    finally:
        running.stop()
    return runs, notes


def _trial(n: int, run: Run, seconds: float) -> Trial:
    status, cause = judge(run)
    return Trial(
        n=n,
        purpose="calibrate",
        config=run.config,
        status=status,
        measured=run.metrics(),
        run_id=run.run_id,
        cause=cause,
        engine_seconds=seconds,
        startup_s=run.startup_s,
    )


def _loop(prompt: int, answer: int, concurrency: int, requests: int, seed: int) -> Workload:
    spec = f"in={prompt},out={answer},concurrency={concurrency}"
    return msgspec.structs.replace(build_workload(spec, requests=requests, seed=seed), source=spec)


def _log(tokens: float) -> str:
    return f"{math.log(max(tokens, 1.0)):.3f}"


def _outcome(trial: Trial) -> str:
    metrics = trial.measured
    if trial.status != "done" or metrics is None:
        return f"{trial.status}: {trial.cause}"
    return f"{metrics.output_tokens_per_s:.1f} output tokens/s over {metrics.duration_s:.1f} s"
