"""Fit a step time to runs: non-negative robust least squares, drawn to the datasheet where the runs say nothing."""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from powerband.records.config import Value
from powerband.records.run import Contention, Run
from powerband.records.workload import Workload
from powerband.simulate.observe import observe_steps
from powerband.simulate.observed import Content, Observed
from powerband.simulate.scheduler import Limits, limits_of
from powerband.simulate.step_time import FACTORS, LAUNCH, LEAST, PRIOR_RESIDUAL, REQUEST, StepTime

ROW_NOISE = 0.10  # relative spread of one observed window (timer, HTTP, neighbours); Huber bends at 1.5 of it
EFFECTIVE_ROWS = 40  # windows of one run share its conditions: more of them than this add no certainty
PRIOR_RUNS = 2.0  # the assumed residual weighs as much as this many runs
# Of a run's weight, what its whole times carry: small pauses are outliers among windows, but they happen again. A
# window counts at most LONGEST times what is expected of it: a host that stood still does not.
TOTALS_SHARE, LONGEST = 0.5, 2.0

# A fit begins from a host that launches this many times as slowly as assumed: from a quick one, whose launches no step
# waits for, it would never learn that they are slow.
SLOW_LAUNCH = 4.0

Array = NDArray[np.float64]


def fit_step_time(runs: Sequence[Run], prior: StepTime) -> StepTime:
    """The step time that explains the runs' gaps between tokens, each run at its own config.

    One run at batch 1 fixes what a lone sequence costs; how the cost grows with the batch then still comes from
    ``prior``, and the covariance says so. Runs on contended hosts, and runs without usable gaps, are passed over; with
    none left ``prior`` is returned as it is.
    """
    rows: list[tuple[Observed, StepTime, float]] = []
    used: list[Run] = []
    bounds: list[int] = [0]
    for run in runs:
        if isinstance(run.contention, Contention) and run.contention.contended:
            continue
        limits = limits_of(run.config)
        seen = observe_steps(run, limits)
        if not seen:
            continue
        here = prior.at(run.config)
        weight = min(1.0, EFFECTIVE_ROWS / len(seen))
        rows += [(row, here, weight) for row in seen]
        used.append(run)
        bounds.append(len(rows))
    if not rows:
        return prior
    factors, covariance, errors = _solve(rows, prior, [limits_of(run.config) for run in used], bounds)
    return msgspec.structs.replace(
        prior,
        factors=tuple(factors.tolist()),
        covariance=tuple(map(tuple, covariance.tolist())),
        residual=_residual([row for row, _, _ in rows], errors, bounds, used),
        basis="measured",
        runs=tuple(run.run_id for run in used),
        seen=_knob_values(used),
    )


def _solve(
    rows: list[tuple[Observed, StepTime, float]], prior: StepTime, limits: list[Limits], bounds: list[int]
) -> tuple[Array, Array, Array]:
    """Factors, their covariance, and the relative error of each row that is left."""
    start = np.array(prior.factors)
    precision: Array = np.linalg.inv(np.array(prior.covariance, dtype=np.float64))
    limits_by_row = [one for one, count in zip(limits, np.diff(bounds).tolist(), strict=True) for _ in range(count)]
    sums = _totals([row for row, _, _ in rows], bounds)
    single = np.array([weight for _, _, weight in rows]) / ROW_NOISE**2
    base = np.concatenate([(1 - TOTALS_SHARE) * single, TOTALS_SHARE * (sums @ single)])
    own_s = np.array([row.seconds for row, _, _ in rows])
    seconds = np.concatenate([own_s, sums @ own_s])
    count = len(rows)
    factors = start.copy()
    factors[LAUNCH] *= SLOW_LAUNCH
    weights = base.copy()
    scale = seconds.copy()
    relative = np.zeros((len(seconds), len(FACTORS)))
    for _ in range(8):  # which side of the roofline binds, and which rows are outliers, depends on the factors
        parts = np.array(
            [
                row_parts(row, _with(step, factors), limit)
                for (row, step, _), limit in zip(rows, limits_by_row, strict=True)
            ]
        )
        seconds[count:] = sums @ np.minimum(own_s, LONGEST * (parts @ factors))
        parts = np.concatenate([parts, sums @ parts])
        # By the longer of both: a row cut short by a timer's jitter must not weigh as much as its ratio says.
        scale = np.maximum(seconds, parts @ factors)
        relative = parts / scale[:, None]
        hessian = relative.T @ (weights[:, None] * relative) + precision
        target = relative.T @ (weights * seconds / scale) + precision @ start
        factors = _non_negative(hessian, target, factors)
        errors = np.abs(relative @ factors - seconds / scale)
        weights = base * np.minimum(1.0, 1.5 * ROW_NOISE / np.maximum(errors, 1e-9))
        weights[count:] = base[count:]
    covariance = np.asarray(np.linalg.inv(relative.T @ (weights[:, None] * relative) + precision), dtype=np.float64)
    left: Array = (relative @ factors) * scale / seconds - 1.0
    return factors, covariance, left[:count]


def _totals(rows: Sequence[Observed], bounds: list[int]) -> Array:
    """For each run a line that adds up its windows without prompts, and one for those with; none for no window."""
    prompts = np.array([row.prefill_tokens > 0 for row in rows])
    place = np.arange(len(rows))
    lines = [
        (low <= place) & (place < high) & (prompts == kind) for low, high in pairwise(bounds) for kind in (False, True)
    ]
    return np.array([line for line in lines if line.any()], dtype=np.float64)


def _with(step: StepTime, factors: Array) -> StepTime:
    return msgspec.structs.replace(step, factors=tuple(factors.tolist()))


def row_parts(row: Observed, step: StepTime, limits: Limits) -> Array:
    """Datasheet seconds of a row by factor; a prompt longer than the budget is the steps it takes."""
    if row.contents:
        return _added_up(row.contents, step)
    total = np.zeros(len(FACTORS))
    left, cached, budget = row.prefill_tokens, 0, limits.most_prompt_tokens
    apart = (limits.split_rows or limits.prompts_first) and row.sequences > 0
    while True:
        take = min(left, max(budget - row.sequences, 1))
        left -= take
        ended = 1 if take and not left else 0
        pairs = take * (cached + (take + 1) / 2)
        if apart:
            if not (limits.prompts_first and cached):  # decoding goes on once, after the last pass of the prompt
                total += _decode_parts(row, step)
            if take:
                total += step.parts(sequences=0, context_tokens=0.0, prefill_tokens=take, pairs=pairs, sampled=ended)
        else:
            total += step.parts(
                sequences=row.sequences,
                context_tokens=row.context_tokens,
                prefill_tokens=take,
                pairs=pairs,
                sampled=row.sequences + ended,
            )
        cached += take
        if left <= 0:
            break
    total *= row.steps
    total[REQUEST] = row.requests * step.terms.request_s
    return total


def _added_up(contents: Sequence[Content], step: StepTime) -> Array:
    """Of steps that could only be timed together."""
    total = np.zeros(len(FACTORS))
    for one in contents:
        parts = step.parts(
            sequences=one.sequences,
            context_tokens=one.context_tokens,
            prefill_tokens=one.prefill_tokens,
            pairs=one.pairs,
            sampled=one.sequences + one.prompts,
        )
        total += one.steps * np.array(parts)
    return total


def _decode_parts(row: Observed, step: StepTime) -> Array:
    """Of the passes that the row's sequences are split into."""
    total = np.zeros(len(FACTORS))
    for size in row.rows or (row.sequences,):
        context = row.context_tokens * size / row.sequences
        total += step.parts(sequences=size, context_tokens=context, prefill_tokens=0, pairs=0.0, sampled=size)
    return total


def _non_negative(hessian: Array, target: Array, start: Array) -> Array:
    """Minimise f'Hf/2 - t'f with every f at its least or above, by coordinate descent (H is positive definite)."""
    factors = np.maximum(start, LEAST)
    for _ in range(500):
        largest = 0.0
        for i in range(len(factors)):
            best = factors[i] + (target[i] - hessian[i] @ factors) / hessian[i, i]
            new = max(best, LEAST[i])
            largest = max(largest, abs(new - factors[i]))
            factors[i] = new
        if largest < 1e-9:
            break
    return factors


def _residual(rows: Sequence[Observed], errors: Array, bounds: list[int], runs: Sequence[Run]) -> float:
    """Spread of the runs' whole times about the fit, with the assumed one as if seen in PRIOR_RUNS runs.

    A run's whole time, not its median step: pauses that the fit passes over as outliers still happen to the next run.
    What repeats of one config under one workload differ by counts with its own degrees of freedom, where that is more:
    no fit explains it, and the next run differs by as much.
    """
    seconds = np.array([row.seconds for row in rows])
    misses = [
        float(np.dot(errors[low:high], seconds[low:high]) / seconds[low:high].sum()) for low, high in pairwise(bounds)
    ]
    repeats: dict[tuple[str, Workload], list[float]] = {}
    for run, miss in zip(runs, misses, strict=True):
        repeats.setdefault((run.config.key, run.workload), []).append(miss)
    between = sum(float(np.var(group)) * len(group) for group in repeats.values())
    freedom = len(misses) - len(repeats)
    about_the_fit = _with_prior(sum(miss**2 for miss in misses), len(misses))
    return max(about_the_fit, _with_prior(between, freedom)) if freedom else about_the_fit


def _with_prior(squares: float, count: int) -> float:
    return math.sqrt((PRIOR_RUNS * PRIOR_RESIDUAL**2 + squares) / (PRIOR_RUNS + count))


def _knob_values(runs: Sequence[Run]) -> dict[str, tuple[Value, ...]]:
    seen: dict[str, list[Value]] = {}
    for run in runs:
        for name, value in run.config.knobs.items():
            values = seen.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: tuple(values) for name, values in seen.items()}
