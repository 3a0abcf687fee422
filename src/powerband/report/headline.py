"""The answer of a loop in one sentence: the ratio, its interval and the verdict, or why there is none."""

from powerband.records.rounds import LoopReport
from powerband.records.value import Interval, Missing
from powerband.records.verdict import Compared, Verdict
from powerband.report.compare import measured, noise_text, repeats_text
from powerband.report.document import Headline
from powerband.report.format import (
    clean,
    objective_value,
    one_line,
    percent,
    ratio,
    ratio_interval,
    significant,
    slo_text,
    words,
)
from powerband.report.trials import trial_of

_SUBJECT = {"goodput_per_s": "goodput", "output_tokens_per_s": "output tokens/s"}


def headline(report: LoopReport) -> Headline:
    """The verdict in one sentence with the ratio and its interval, or why there is none."""
    if report.verdict is None:
        return _unverified(report)
    verdict = report.verdict
    row = next((row for row in verdict.metrics if row.name == report.objective), None)
    answer = verdict.verdict
    if row is None:
        subject = f"no {_SUBJECT[report.objective]} was compared"
        return Headline(answer, answer, subject, "", f"{subject}, {answer}", _details(report, verdict, "", None))
    subject = f"{_SUBJECT[row.name]} at the same traffic"
    span = f"{objective_value(row.name, row.before)} to {objective_value(row.name, row.after)}"
    details = _details(report, verdict, span, row.interval)
    if isinstance(row.ratio, Missing):
        sentence = f"{subject}: from {span} (no ratio), {answer}"
        return Headline(answer, _change(row), subject, "", sentence, details)
    if isinstance(row.interval, Missing):
        figure = ratio(row.ratio)
        return Headline(answer, figure, subject, "", f"{figure} {subject} (no interval), {answer}", details)
    figure, interval = ratio(row.ratio, row.interval), ratio_interval(row.interval)
    return Headline(answer, figure, subject, interval, f"{figure} {subject} {interval}, {answer}", details)


def _change(row: Compared) -> str:
    return f"{significant(row.before)} → {significant(row.after)}"


def _details(report: LoopReport, verdict: Verdict, span: str, interval: Interval | Missing | None) -> tuple[str, ...]:
    details = [_sentence(verdict.reason)]
    if isinstance(interval, Missing):
        details.append(f"From {span}; no interval: {_sentence(interval.missing)}")
    elif interval is not None:
        details.append(f"From {span}; the interval is at {interval.level * 100:g} %.")
    effect = f"smallest effect that counts {percent(verdict.minimum_effect)}"
    details.append(f"{repeats_text(verdict)}; {noise_text(verdict)}; {effect}.")
    details.append(f"Quality {words(verdict.quality.verdict)}: {_sentence(verdict.quality.reason)}")
    if report.slo is not None:
        details.append(f"SLO: {slo_text(report.slo)}.")
    return tuple(details)


def _sentence(text: str) -> str:
    return clean(text).strip().rstrip(".") + "."


def _unverified(report: LoopReport) -> Headline:
    stopped = f"The loop stopped because {one_line(report.stopped_because)}."
    before, best = trial_of(report, report.baseline_trial), trial_of(report, report.best_trial)
    if before is None or best is None or best.n == before.n:
        sentence = "Nothing better than the baseline was found: no change is recommended"
        return Headline(
            "no change", "No change", "nothing better than the baseline was found", "", sentence, (stopped,)
        )
    low, high = (measured(trial, report.objective) for trial in (before, best))
    subject = f"{_SUBJECT[report.objective]} at the same traffic, not verified"
    note = f"One run each (trials {before.n} and {best.n}), so no interval: not recommended until verified."
    if isinstance(low, Missing) or isinstance(high, Missing) or low <= 0:
        sentence = f"Trial {best.n} looks best; not verified"
        return Headline("not verified", "Not verified", f"trial {best.n} looks best", "", sentence, (note, stopped))
    figure = ratio(high / low)
    return Headline(
        "not verified", figure, subject, "", f"{figure} {subject} (no interval: one run each)", (note, stopped)
    )
