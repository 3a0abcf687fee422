"""The rounds of a loop: what was located, changed and predicted, and what was then measured."""

from powerband.records.rounds import LoopReport, Round
from powerband.records.value import Missing
from powerband.report.compare import measured
from powerband.report.document import Block, Cell, Column, Figure, Figures, Section, Table, Text, Tone
from powerband.report.format import clean, knob_text, number_interval, one_line, significant, words
from powerband.report.plots import Estimate, estimates_plot
from powerband.report.trials import trial_of

_TONES: dict[str, Tone] = {"better": "good", "not_better": "plain", "failed": "bad", "unusable": "bad"}
_AXIS = {
    "goodput_per_s": "goodput, requests/s",
    "output_tokens_per_s": "output tokens/s",
    "attainment": "attainment",
}


def rounds_section(report: LoopReport) -> Section:
    stopped = f"Stopped: {one_line(report.stopped_because).rstrip('.')}."
    if not report.rounds:
        return Section("rounds", "Rounds", f"No round was made. {stopped}", ())
    blocks: list[Block] = []
    figure = _figure(report)
    if figure is not None:
        blocks.append(Figures((figure,)))
    blocks.append(_table(report))
    blocks.append(Text(f"{_coverage(report)} {stopped}", "muted"))
    better = sum(turn.outcome == "better" for turn in report.rounds)
    lead = f"{len(report.rounds)} rounds, {better} of them better than what was there before."
    return Section("rounds", "Rounds", lead, tuple(blocks))


def _change(turn: Round) -> str:
    return clean(", ".join(f"{name}={knob_text(value)}" for name, value in turn.change.items())) or "nothing changed"


def inside(turn: Round) -> bool | None:
    """Whether the measurement lies in the predicted interval; None where one of them is missing."""
    if turn.predicted is None or turn.measured is None:
        return None
    return turn.predicted.interval.low <= turn.measured <= turn.predicted.interval.high


def _coverage(report: LoopReport) -> str:
    known = [hit for hit in map(inside, report.rounds) if hit is not None]
    if not known:
        return "No round has both a prediction and a measurement, so the predictions are not checked."
    levels = {turn.predicted.interval.level for turn in report.rounds if turn.predicted is not None}
    level = " and ".join(f"{value * 100:g} %" for value in sorted(levels))
    return f"{sum(known)} of {len(known)} measurements lie inside their predicted {level} interval."


def _figure(report: LoopReport) -> Figure | None:
    baseline = measured(trial_of(report, report.baseline_trial), report.objective)
    title = f"Predicted and measured {_AXIS[report.objective]}"
    svg = estimates_plot(
        title,
        [_estimate(turn) for turn in report.rounds],
        None if isinstance(baseline, Missing) else baseline,
        _AXIS[report.objective],
    )
    if svg is None:
        return None
    legend = [
        ("k-interval", "predicted, with interval"),
        ("k-good", "measured, better"),
        ("k-plain", "measured, not better"),
    ]
    if not isinstance(baseline, Missing):
        legend.append(("k-base", f"baseline, {significant(baseline)}"))
    return Figure(title, svg, legend=tuple(legend))


def _estimate(turn: Round) -> Estimate:
    predicted = turn.predicted
    tooltip = f"round {turn.n}: {_change(turn)}; predicted {_predicted_text(turn)}; measured {_measured_text(turn)}"
    return Estimate(
        label=one_line(f"Round {turn.n}: {_change(turn)}"),
        tooltip=tooltip,
        predicted=predicted.objective if predicted else None,
        low=predicted.interval.low if predicted else None,
        high=predicted.interval.high if predicted else None,
        measured=turn.measured,
        tone="good" if turn.outcome == "better" else "plain",
        note=words(turn.outcome) if turn.measured is None else "",
    )


def _predicted_text(turn: Round) -> str:
    if turn.predicted is None:
        return "nothing"
    return f"{significant(turn.predicted.objective)} {number_interval(turn.predicted.interval)}"


def _measured_text(turn: Round) -> str:
    return "nothing" if turn.measured is None else significant(turn.measured)


def _table(report: LoopReport) -> Table:
    columns = (
        Column("Round", numeric=True),
        Column("Cause"),
        Column("Change"),
        Column("Why", wide=True),
        Column("Predicted", numeric=True),
        Column("Measured", numeric=True),
        Column("Outcome"),
        Column("Trial", numeric=True),
    )
    return Table(f"Rounds, {_AXIS[report.objective]}", columns, tuple(_row(report, turn) for turn in report.rounds))


def _row(report: LoopReport, turn: Round) -> tuple[Cell, ...]:
    predicted = Cell("not predicted", tone="muted")
    if turn.predicted is not None:
        basis = turn.predicted.basis
        predicted = Cell(significant(turn.predicted.objective), number_interval(turn.predicted.interval), basis=basis)
    return (
        Cell(str(turn.n)),
        Cell(words(turn.cause)),
        Cell(_change(turn), code=True),
        Cell(clean(turn.why)),
        predicted,
        _measured_cell(report, turn),
        Cell(words(turn.outcome), tone=_TONES[turn.outcome]),
        Cell(str(turn.trial)),
    )


def _measured_cell(report: LoopReport, turn: Round) -> Cell:
    if turn.measured is None:
        trial = trial_of(report, turn.trial)
        cause = trial.cause if trial is not None and trial.cause else words(turn.outcome)
        return Cell("not measured", one_line(cause, 120), "muted")
    hit = inside(turn)
    note = "" if hit is None else ("inside the interval" if hit else "outside the interval")
    return Cell(significant(turn.measured), note)
