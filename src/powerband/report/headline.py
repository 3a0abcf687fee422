"""The answer of a loop in one sentence: the ratio, its interval and the verdict, or why there is none."""

from dataclasses import replace

from powerband.records.finding import Diagnosis
from powerband.records.rounds import LoopReport
from powerband.records.slo import Slo
from powerband.records.value import Interval, Missing
from powerband.records.verdict import Compared, QualityResult, Verdict
from powerband.report.compare import measured, noise_text, repeats_text
from powerband.report.document import Headline
from powerband.report.format import (
    WHOLES,
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

_SUBJECT = {
    "goodput_per_s": "goodput",
    "output_tokens_per_s": "output tokens/s",
    "attainment": "attainment",
    "goodput_per_s_per_card": "goodput of a card",
    "output_tokens_per_s_per_card": "output tokens/s of a card",
}


def headline(report: LoopReport) -> Headline:
    """The verdict in one sentence with the ratio and its interval, or why there is none."""
    if report.verdict is None:
        return _unverified(report)
    found = _verified(report, report.verdict)
    missed = _missed(report.slo, report.verdict)
    return replace(found, missed=missed, sentence=f"{found.sentence}; {missed}") if missed else found


def _missed(slo: Slo | None, verdict: Verdict) -> str:
    """That a change to keep does not keep the promise."""
    row = next((row for row in verdict.metrics if row.name == "attainment"), None)
    if slo is None or row is None or verdict.verdict != "keep" or row.after >= slo.attainment:
        return ""
    return f"the promise is still missed: {percent(row.after)} of the requests, {slo.attainment * 100:g} % promised"


def _verified(report: LoopReport, verdict: Verdict) -> Headline:
    row = next((row for row in verdict.metrics if row.name == (verdict.objective or report.objective)), None)
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
    if row.interval is None:
        figure = ratio(row.ratio)
        return Headline(answer, figure, subject, "", f"{figure} {subject} (no interval), {answer}", details)
    figure, interval = ratio(row.ratio, row.interval), ratio_interval(row.interval)
    return Headline(answer, figure, subject, interval, f"{figure} {subject} {interval}, {answer}", details)


def _change(row: Compared) -> str:
    return f"{significant(row.before)} → {significant(row.after)}"


def _details(report: LoopReport, verdict: Verdict, span: str, interval: Interval | None) -> tuple[str, ...]:
    details = [_sentence(verdict.reason)]
    if interval is not None:
        details.append(f"From {span}; the interval is at {interval.level * 100:g} %.")
    elif span:
        details.append(f"From {span}; the ratio has no interval.")
    effect = f"smallest effect that counts {percent(verdict.minimum_effect)}"
    left_out = f" ({verdict.excluded} more left out)" if verdict.excluded else ""
    details.append(f"{repeats_text(verdict)}{left_out}; {noise_text(verdict)}; {effect}.")
    details.append(quality_text(verdict.quality))
    if report.slo is not None:
        details.append(f"SLO: {slo_text(report.slo)}.")
    return tuple(details)


def quality_text(quality: QualityResult) -> str:
    """Whether the answers are as good, why, and the figures that say so where there are any."""
    figures = {
        "perplexity ratio": quality.perplexity_ratio,
        "divergence": quality.divergence,
        "agreement": quality.agreement,
    }
    shown = [f"{name} {significant(value)}" for name, value in figures.items() if value is not None]
    shown += [f"task {one_line(quality.task, 80)}"] if quality.task else []
    listed = f" ({', '.join(shown)})" if shown else ""
    return f"Quality {words(quality.verdict)}{listed}: {_sentence(quality.reason)}"


def _sentence(text: str) -> str:
    return clean(text).strip().rstrip(".") + "."


def _unverified(report: LoopReport) -> Headline:
    stopped = f"Stopped: {_sentence(one_line(report.stopped_because))}"
    before, best = trial_of(report, report.baseline_trial), trial_of(report, report.best_trial)
    if len(report.trials) == 1 and report.diagnosis_before.verdict != "undecided":
        return _located(report.diagnosis_before, stopped)
    if before is None or best is None or best.n == before.n:
        found = "nothing better than the baseline was found"
        return Headline("no change", "No change", found, "", f"{found}, no change is recommended", (stopped,))
    answer, subject = "not verified", f"{_SUBJECT[report.objective]} at the same traffic"
    note = f"One run each (trials {before.n} and {best.n}), so no interval: not recommended until verified."
    low, high = (measured(trial, report.objective) for trial in (before, best))
    if isinstance(low, Missing) or isinstance(high, Missing):
        sentence = f"trial {best.n} looks best, {answer}"
        return Headline(answer, f"Trial {best.n}", "looks best", "", sentence, (note, stopped))
    figure = ratio(high / low) if low > 0 else f"{significant(low)} → {significant(high)}"
    return Headline(answer, figure, subject, "", f"{figure} {subject} (one run each), {answer}", (note, stopped))


def _located(diagnosis: Diagnosis, stopped: str) -> Headline:
    """The answer where only one config ran: the cause, its size, and what helps."""
    cause, subject, details = words(diagnosis.verdict), "is its limit", [stopped]
    first = next((one for one in diagnosis.findings if one.cause == diagnosis.verdict), None)
    if first is not None:
        subject += f", {percent(first.share)} of {WHOLES[first.of]}"
        details = [f"What helps: {_sentence(first.remedy)}", f"Why: {_sentence(first.evidence)}", stopped]
    return Headline("no change", cause.capitalize(), subject, "", f"{cause} {subject}", tuple(details))
