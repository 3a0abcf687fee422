"""Every trial of a loop, also those that failed, were pruned or cannot be used, each with its cause."""

from collections.abc import Mapping

from powerband.records.metrics import Metrics
from powerband.records.rounds import LoopReport
from powerband.records.run import Run, Trial
from powerband.records.units import format_duration
from powerband.records.value import Missing
from powerband.report.document import Cell, Column, Section, Table, Tone
from powerband.report.format import config_text, one_line, percent, significant, value_of, words

_TONES: dict[str, Tone] = {"done": "plain", "failed": "bad", "pruned": "muted", "contended": "bad"}
_FIGURES = (
    "goodput_per_s",
    "attainment",
    "output_tokens_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
)
_HEADS = (
    "Goodput, req/s",
    "Attainment",
    "Output tok/s",
    "TTFT p50, ms",
    "TTFT p99, ms",
    "TPOT p50, ms",
    "TPOT p99, ms",
)


def trial_of(report: LoopReport, n: int | None) -> Trial | None:
    return next((trial for trial in report.trials if trial.n == n), None)


def run_of(trial: Trial | None, runs: Mapping[str, Run]) -> Run | None:
    return None if trial is None or trial.run_id is None else runs.get(trial.run_id)


def trials_section(report: LoopReport) -> Section:
    counts = {status: sum(trial.status == status for trial in report.trials) for status in _STATUSES}
    parts = [f"{count} {words(status)}" for status, count in counts.items() if count]
    spent, budget = format_duration(report.engine_seconds), format_duration(report.budget_s)
    lead = f"{len(report.trials)} trials: {', '.join(parts)}. They took {spent} of the {budget} budget."
    return Section("trials", "Trials", lead, (trials_table(report.trials, report),))


_STATUSES = ("done", "failed", "pruned", "contended", "client_limited")


def trials_table(trials: tuple[Trial, ...], report: LoopReport | None = None) -> Table:
    """One row a trial; settings as their difference from the baseline where there is one."""
    base = trial_of(report, report.baseline_trial) if report else None
    columns = (
        Column("Trial", numeric=True),
        Column("For"),
        Column("Settings", wide=True),
        Column("Status"),
        *(Column(head, numeric=True, basis="measured") for head in _HEADS),
        Column("Took, s", numeric=True, basis="measured"),
        Column("Run"),
    )
    return Table("Trials", columns, tuple(_row(trial, base, report) for trial in trials))


def _row(trial: Trial, base: Trial | None, report: LoopReport | None) -> tuple[Cell, ...]:
    usable = trial.status == "done"
    settings = "baseline" if trial is base else config_text(trial.config, base.config if base else None)
    chosen = report is not None and trial.n == report.best_trial
    cause = one_line(trial.cause, 300) if trial.cause else ("" if usable else "no cause was recorded")
    status = Cell(words(trial.status), cause, _TONES.get(trial.status, "bad"))
    return (
        Cell(str(trial.n), "best" if chosen else "", "good" if chosen else "plain"),
        Cell(words(trial.purpose)),
        Cell(settings, code=True),
        status,
        *(_figure(trial.measured, name, usable) for name in _FIGURES),
        Cell(significant(trial.engine_seconds) if trial.engine_seconds else "–"),
        Cell(run_key(trial.run_id, report.session_id if report else ""), code=True)
        if trial.run_id
        else Cell("no run", tone="muted"),
    )


def run_key(run_id: str, session_id: str) -> str:
    """A run's id without its session, which is the report's own; the provenance has it in full."""
    return one_line(run_id.removeprefix(f"{session_id}."))


def _figure(metrics: Metrics | None, name: str, usable: bool) -> Cell:
    """A dash where nothing ran (the status column says why); a figure of an unusable run is shown muted."""
    if metrics is None:
        return Cell("–", tone="muted")
    value = value_of(metrics, name)
    if isinstance(value, Missing):
        return Cell("–", one_line(value.missing, 60), "muted")
    shown = (
        percent(value) if name == "attainment" else significant(value * (1000 if name[:4] in ("ttft", "tpot") else 1))
    )
    return Cell(shown, tone="plain" if usable else "muted")
