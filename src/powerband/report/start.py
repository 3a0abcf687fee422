"""The command that starts the engine, what it changes, and what the engine said it runs with."""

from collections.abc import Mapping

from powerband.records.config import EngineConfig
from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.records.value import Missing
from powerband.report.document import Block, Cell, Code, Column, Section, Table, Tone
from powerband.report.format import clean, knob_text, one_line
from powerband.report.trials import run_of, trial_of


def start_section(report: LoopReport, runs: Mapping[str, Run]) -> Section:
    """The command to copy, what it changes, and what the engine said it runs with."""
    chosen = report.chosen
    before = trial_of(report, report.baseline_trial)
    blocks: list[Block] = [Code(clean(report.start_command), "Start the engine")]
    if chosen is None:
        lead = "No change is recommended: this starts the baseline."
    else:
        base = before.config if before else EngineConfig(engine=chosen.engine, model=chosen.model)
        changed = [*chosen.changes_from(base), *(name for name in base.knobs if name not in chosen.knobs)]
        lead = f"{len(changed)} of {len(chosen.knobs | base.knobs)} settings differ from the naive ones."
        blocks.append(_settings(chosen, base, changed, run_of(trial_of(report, report.best_trial), runs)))
    return Section("start", "Start command", lead, tuple(blocks))


def _settings(chosen: EngineConfig, base: EngineConfig, changed: list[str], run: Run | None) -> Table:
    rows = []
    for name in sorted(chosen.knobs | base.knobs, key=lambda name: (name not in changed, name)):
        tone: Tone = "plain" if name in changed else "muted"
        asked = [Cell(knob_text(config.knobs.get(name)), tone=tone, code=True) for config in (base, chosen)]
        rows.append((Cell(clean(name), tone=tone, code=True), *asked, _effective(name, run)))
    columns = (Column("Setting"), Column("Naive"), Column("Chosen"), Column("Engine reports", basis="measured"))
    return Table("Settings, changed ones first", columns, tuple(rows))


def _effective(name: str, run: Run | None) -> Cell:
    if run is None:
        return Cell("not read", "the run's evidence is not in the journal", "muted")
    if isinstance(run.effective, Missing):
        return Cell("not read", one_line(run.effective.missing, 80), "muted")
    if name in run.effective.differs:
        return Cell(one_line(run.effective.differs[name], 80), "differs from what was asked", "bad")
    if name not in run.effective.values:
        return Cell("not reported", tone="muted")
    return Cell(knob_text(run.effective.values[name]), code=True)
