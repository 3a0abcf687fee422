"""Every trial of a loop, also those that failed, were pruned or cannot be used, each with its cause."""

from collections.abc import Mapping

from powerband.records.rounds import LoopReport
from powerband.records.run import Run, Trial
from powerband.records.units import format_duration
from powerband.records.value import Missing
from powerband.report.document import NONE, Cell, Column, Section, Table, Tone, missing_cell
from powerband.report.format import config_text, is_duration, one_line, percent, significant, value_of, words

_TONES: dict[str, Tone] = {"done": "plain", "failed": "bad", "pruned": "muted", "contended": "bad"}
_STATUSES = ("done", "failed", "pruned", "contended", "client_limited")
FIGURES = {
    "goodput_per_s": "Goodput, req/s",
    "attainment": "Attainment",
    "output_tokens_per_s": "Output tok/s",
    "ttft_p50_s": "TTFT p50, ms",
    "ttft_p99_s": "TTFT p99, ms",
    "tpot_p50_s": "TPOT p50, ms",
    "tpot_p99_s": "TPOT p99, ms",
}
_PROMISED = {"goodput_per_s", "attainment"}


def trial_of(report: LoopReport, n: int | None) -> Trial | None:
    return next((trial for trial in report.trials if trial.n == n), None)


def run_of(trial: Trial | None, runs: Mapping[str, Run]) -> Run | None:
    return None if trial is None or trial.run_id is None else runs.get(trial.run_id)


def trials_section(report: LoopReport) -> Section:
    counts = {status: sum(trial.status == status for trial in report.trials) for status in _STATUSES}
    parts = [f"{count} {words(status)}" for status, count in counts.items() if count]
    spent, budget = format_duration(report.engine_seconds), format_duration(report.budget_s)
    lead = f"{len(report.trials)} trials: {', '.join(parts)}. They took {spent} of the {budget} budget."
    return Section("trials", "Trials", lead, (_table(report),))


def _table(report: LoopReport) -> Table:
    """One row a trial; settings as their difference from the baseline where there is one."""
    trials, base = report.trials, trial_of(report, report.baseline_trial)
    names = figure_names(trials)
    columns = (
        Column("Trial", numeric=True),
        Column("For"),
        Column("Settings", wide=True),
        Column("Status"),
        *(Column(FIGURES[name], numeric=True, basis="measured") for name in names),
        Column("Took, s", numeric=True, basis="measured"),
        Column("Run"),
    )
    first = first_with(trials)
    rows = tuple(_row(trial, settings_cell(trial, base, first), names, report) for trial in trials)
    return Table("Trials", columns, rows)


def first_with(trials: tuple[Trial, ...]) -> dict[str, int]:
    """For each config's key, the first trial that ran with it."""
    first: dict[str, int] = {}
    for trial in trials:
        first.setdefault(trial.config.key, trial.n)
    return first


def figure_names(trials: tuple[Trial, ...]) -> list[str]:
    """The metrics worth a column: goodput and attainment exist only where an SLO was set."""
    promised = any(trial.measured is not None and trial.measured.attainment is not None for trial in trials)
    return [name for name in FIGURES if promised or name not in _PROMISED]


def settings_cell(trial: Trial, base: Trial | None, first: dict[str, int]) -> Cell:
    """The settings, or the trial that ran with the same ones before."""
    earlier = first[trial.config.key]
    if earlier != trial.n:
        return Cell(f"as trial {earlier}", tone="muted")
    if trial is base:
        return Cell(f"baseline: {config_text(trial.config)}", code=True)
    return Cell(config_text(trial.config, base.config if base else None), code=True)


def status_cell(trial: Trial, *, cause: bool = True) -> Cell:
    fallback = "" if trial.status == "done" else "no cause was recorded"
    note = (one_line(trial.cause, 300) if trial.cause else fallback) if cause else ""
    return Cell(words(trial.status), note, _TONES.get(trial.status, "bad"))


def _row(trial: Trial, settings: Cell, names: list[str], report: LoopReport) -> tuple[Cell, ...]:
    chosen = trial.n == report.best_trial
    run = Cell(run_key(trial.run_id, report.session_id), code=True) if trial.run_id else None
    return (
        Cell(str(trial.n), "best" if chosen else "", "good" if chosen else "plain"),
        Cell(words(trial.purpose)),
        settings,
        status_cell(trial),
        *(figure_cell(trial, name) for name in names),
        Cell(significant(trial.engine_seconds) if trial.engine_seconds else "–"),
        run or Cell("no run", tone="muted"),
    )


def run_key(run_id: str, session_id: str) -> str:
    """A run's id without its session, which is the report's own; the provenance has it in full."""
    return one_line(run_id.removeprefix(f"{session_id}."))


def figure_cell(trial: Trial, name: str) -> Cell:
    """A dash where nothing ran (the status says why); a figure of an unusable run is shown muted."""
    if trial.measured is None:
        return NONE
    value = value_of(trial.measured, name)
    if isinstance(value, Missing):
        return missing_cell(value)
    usable: Tone = "plain" if trial.status == "done" else "muted"
    if name == "attainment":
        return Cell(percent(value), tone=usable)
    return Cell(significant(value * (1000 if is_duration(name) else 1)), tone=usable)
