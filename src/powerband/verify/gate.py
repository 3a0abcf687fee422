"""The quality gate: is the candidate as good as its reference at this task, beyond noise?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerband.records.quality import (
    Evidence,
    GateVerdict,
    MetricVerdict,
    QualityAnswer,
    QualityLimit,
    QualityMetric,
    QualityTask,
    ScoredText,
)
from powerband.records.value import Interval, Missing
from powerband.verify.answers import is_broken, is_repetitive
from powerband.verify.bootstrap import LEVEL, Floats, mean_interval
from powerband.verify.divergence import TextDifference, text_difference
from powerband.verify.limits import limits_for


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict with its reason and every metric behind it."""

    verdict: GateVerdict
    reason: str
    metrics: tuple[QualityMetric, ...]


@dataclass(frozen=True, slots=True)
class _Figure:
    value: float | Missing
    interval: Interval | None = None
    count: int = 0
    noise: float | None = None  # what it allows where it compares the reference with itself; None: the interval's end


def judge_quality(task: QualityTask, reference: Evidence, candidate: Evidence, noise: Evidence | None) -> Judged:
    """Compare the candidate's evidence with the reference's, metric by metric, and decide.

    ``noise`` is the reference once more, in another order and batch. Passed needs every metric passed and a perplexity
    or divergence measured; one metric failed fails the gate; anything else is undecided.
    """
    limits = limits_for(task.preset)
    found = figures(task, reference, candidate)
    again = {} if noise is None else figures(task, every(reference, noise.step), noise)
    metrics = tuple(
        _metric(limits[name], figure, again.get(name)) for name, figure in found.items() if figure is not None
    )
    return Judged(*_decide(metrics), metrics)


def every(evidence: Evidence, step: int) -> Evidence:
    """The part of ``evidence`` that a run over every ``step``-th prompt and passage would have given."""
    if step == evidence.step:
        return evidence
    return Evidence(
        task=evidence.task,
        engine=evidence.engine,
        answers=evidence.answers[::step],
        answer_scores=_thin(evidence.answer_scores, step),
        passage_scores=_thin(evidence.passage_scores, step),
        seconds=evidence.seconds,
        step=step,
    )


def _thin(scores: tuple[ScoredText, ...] | Missing, step: int) -> tuple[ScoredText, ...] | Missing:
    return scores if isinstance(scores, Missing) else scores[::step]


def figures(task: QualityTask, reference: Evidence, candidate: Evidence) -> dict[str, _Figure | None]:
    """Every difference by name; None where the task asks for no such thing."""
    passages = differences(reference.passage_scores, candidate.passage_scores)
    answers = differences(reference.answer_scores, candidate.answer_scores)
    before, after = reference.answers, candidate.answers
    return {
        "perplexity_ratio": _over_positions(passages, "log_ratio", exponent=True) if task.passages else None,
        "divergence": _over_positions(passages, "divergence") if task.passages else None,
        "disagreement": _over_positions(passages, "different") if task.passages else None,
        "answer_divergence": _over_positions(answers, "divergence") if task.prompts else None,
        "answer_disagreement": _over_positions(answers, "different") if task.prompts else None,
        "failed_more": _more([_flag(a.right, wrong=True) for a in before], [_flag(a.right, wrong=True) for a in after]),
        "repeated_more": _more(
            [float(is_repetitive(a.text)) for a in before], [float(is_repetitive(a.text)) for a in after]
        ),
        "cut_off_more": _more([float(not a.ended) for a in before], [float(not a.ended) for a in after]),
        "broken_syntax_more": _more(broken(task, before), broken(task, after)),
    }


def broken(task: QualityTask, answers: Sequence[QualityAnswer]) -> list[float | None]:
    """For each answer 1 where its code does not parse, 0 where it does, None where there is none to parse."""
    return [_flag(is_broken(answer.text, task.syntax, ended=answer.ended)) for answer in answers]


def _flag(value: bool | None, *, wrong: bool = False) -> float | None:
    return None if value is None else float(value != wrong)


def differences(
    reference: tuple[ScoredText, ...] | Missing, candidate: tuple[ScoredText, ...] | Missing
) -> list[TextDifference | None] | Missing:
    """Text by text; Missing where a side has no scores or no text was cut into the same tokens."""
    for side in (reference, candidate):
        if isinstance(side, Missing):
            return side
    assert not isinstance(reference, Missing)
    assert not isinstance(candidate, Missing)
    found = [text_difference(before, after) for before, after in zip(reference, candidate, strict=True)]
    if found and not any(one is not None and one.positions for one in found):
        return Missing(missing="the two cut the same text into different tokens, or scored no common position")
    return found


def _over_positions(found: list[TextDifference | None] | Missing, name: str, *, exponent: bool = False) -> _Figure:
    if isinstance(found, Missing):
        return _Figure(found)
    usable = [one for one in found if one is not None and one.positions]
    sums, weights = [float(getattr(one, name)) for one in usable], [float(one.positions) for one in usable]
    counted = name == "different"  # one such token in all the text would give a bootstrap-t without an end
    value, interval = mean_interval(sums, weights, transform=_exp if exponent else _same, studentised=not counted)
    return _Figure(value, interval, len(usable))


def _exp(values: Floats) -> Floats:
    return np.exp(np.clip(values, -50.0, 50.0))


def _same(values: Floats) -> Floats:
    return values


def _more(before: Sequence[float | None], after: Sequence[float | None]) -> _Figure | None:
    """How much more often something happens in the candidate's answers; what the reference lacks, it may lack too."""
    pairs = [(b, a) for b, a in zip(before, after, strict=True) if b is not None]
    if not pairs:
        return None
    # An answer without code where the reference wrote some is broken, not exempt.
    changes = [(1.0 if a is None else a) - b for b, a in pairs]
    value, interval = mean_interval(changes, [1.0] * len(changes), studentised=False)
    if interval.low < interval.high:
        return _Figure(value, interval, len(changes))
    # All prompts did the same, which does not make it certain: what n of n leave open at each end.
    open_ = 1 - ((1 - LEVEL) / 2) ** (1 / len(changes))
    interval = Interval(low=max(-1.0, value - open_), high=min(1.0, value + open_), level=LEVEL)
    return _Figure(value, interval, len(changes), noise=value)


def _metric(limit: QualityLimit, figure: _Figure, noise: _Figure | None) -> QualityMetric:
    band = None if noise is None or noise.interval is None else noise.interval.high
    if noise is not None and noise.noise is not None:
        band = noise.noise
    allowed = limit.most if band is None else max(limit.most, band)
    return QualityMetric(
        name=limit.metric,
        value=figure.value,
        interval=figure.interval,
        noise=band,
        limit=limit.most,
        allowed=allowed,
        verdict=_judge(figure, allowed, proof=limit.proof),
        count=figure.count,
    )


def _judge(figure: _Figure, allowed: float, *, proof: bool) -> MetricVerdict:
    if figure.interval is None:
        return "undecided"
    if figure.interval.low > allowed:
        return "failed"
    return "passed" if not proof or figure.interval.high <= allowed else "undecided"


def _decide(metrics: Sequence[QualityMetric]) -> tuple[GateVerdict, str]:
    failed = [metric for metric in metrics if metric.verdict == "failed"]
    if failed:
        return "failed", "; ".join(describe(metric) for metric in failed[:3])
    open_ = [metric for metric in metrics if metric.verdict == "undecided"]
    if open_:
        return "undecided", "; ".join(describe(metric) for metric in open_[:3])
    measured = [metric for metric in metrics if metric.name in ("divergence", "answer_divergence")]
    if not measured:
        return "undecided", "no token probabilities were compared"
    closest = max(measured, key=lambda metric: metric.interval.high / metric.allowed if metric.interval else math.inf)
    return "passed", f"{len(metrics)} metrics within their limits; closest: {describe(closest)}"


def describe(metric: QualityMetric) -> str:
    """``divergence 0.072 (0.066 to 0.079, allowed 0.05)``."""
    if isinstance(metric.value, Missing) or metric.interval is None:
        why = metric.value.missing if isinstance(metric.value, Missing) else "no interval"
        return f"{metric.name.replace('_', ' ')} not measured: {why}"
    span = f"{metric.interval.low:.3g} to {metric.interval.high:.3g}"
    return f"{metric.name.replace('_', ' ')} {metric.value:.3g} ({span}; allowed {metric.allowed:.3g})"
