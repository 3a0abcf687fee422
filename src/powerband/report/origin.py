"""Where the numbers come from: the traffic, the versions and commands, each run's evidence, and what was assumed."""

from collections.abc import Mapping

from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.rounds import LoopReport
from powerband.records.run import ClientCheck, Contention, Run
from powerband.records.units import format_bytes, format_duration
from powerband.records.value import Missing
from powerband.report.compare import after_name
from powerband.report.document import NONE, Block, Bullets, Cell, Code, Column, Section, Table, Text, Tone
from powerband.report.format import clean, one_line, significant, slo_text, timestamp, words


def traffic_section(report: LoopReport) -> Section:
    traffic = report.traffic
    arrivals = "all at once"
    if traffic.concurrency is not None:
        arrivals = f"closed loop, {traffic.concurrency} requests kept in flight"
    elif traffic.request_rate_per_s is not None:
        arrivals = f"open loop, {significant(traffic.request_rate_per_s)} requests/s on average"
    rows = (
        ("Source", clean(traffic.source)),
        ("Scaling", clean(traffic.scaling) or "none: lengths and arrivals as in the source"),
        ("Requests", f"{traffic.requests:,}"),
        ("Arrivals", arrivals),
        ("Input tokens, mean", significant(traffic.input_tokens_mean)),
        ("Output tokens, mean", significant(traffic.output_tokens_mean)),
        ("Longest request, tokens", f"{traffic.longest_tokens:,}"),
        ("SLO", slo_text(report.slo)),
    )
    lead = "Every trial was offered these same requests."
    return Section("traffic", "Traffic", lead, (_pairs("Traffic", rows),))


def _pairs(caption: str, rows: tuple[tuple[str, str], ...]) -> Table:
    columns = (Column("What"), Column("Value", wide=True))
    return Table(caption, columns, tuple((Cell(name), Cell(value)) for name, value in rows))


def provenance_section(report: LoopReport, runs: Mapping[str, Run]) -> Section:
    """Versions, host and command, then one row for each run of the journal."""
    origin = report.provenance
    rows = (
        ("Session", clean(report.session_id)),
        ("Started", timestamp(origin.started_at)),
        ("Host", clean(origin.host)),
        ("Device", _device(report.device)),
        ("Model", _model(report.model)),
        ("Engine", clean(origin.engine_version)),
        ("powerband", f"{clean(origin.powerband)} on Python {clean(origin.python)}"),
        (
            "Budget",
            f"{format_duration(report.budget_s)}, of which trials took {format_duration(report.engine_seconds)}",
        ),
    )
    blocks: list[Block] = [
        _pairs("Provenance", rows),
        Code(clean(origin.command), "Run it again"),
        _runs_table(report, runs),
    ]
    blocks.append(
        Text("Raw evidence of a run: powerband journal, or the folder of its id under the journal's home.", "muted")
    )
    return Section("provenance", "Provenance", "Each number above is from a run below.", tuple(blocks))


def _device(device: DeviceSpec | None) -> str:
    if device is None:
        return "not known: the server was not started here"
    return f"{clean(device.name)}, {format_bytes(device.memory_bytes)}; figures from {clean(device.source)}"


def _model(model: ModelSpec | None) -> str:
    if model is None:
        return "its shape is not known: the server was not started here"
    size = f"{format_bytes(model.weight_bytes)} of {clean(model.weight_dtype)} weights ({model.basis})"
    return f"{clean(model.name)}: {clean(model.architecture)}, {model.parameters:,} parameters, {size}"


def _runs_table(report: LoopReport, runs: Mapping[str, Run]) -> Table:
    named = [trial.run_id for trial in report.trials if trial.run_id is not None]
    ids = [*named, *(run_id for run_id in runs if run_id not in named)]
    columns = (
        Column("Run"),
        Column("Basis"),
        Column("Config"),
        Column("Seed", numeric=True),
        Column("Started"),
        Column("Load generator", wide=True),
        Column("Other work", wide=True),
        Column("Settings that differ", wide=True),
    )
    return Table("Runs in the journal", columns, tuple(_run_row(run_id, runs.get(run_id)) for run_id in ids))


def _run_row(run_id: str, run: Run | None) -> tuple[Cell, ...]:
    name = Cell(one_line(run_id), code=True)
    if run is None:
        return (name, Cell("not in the journal", tone="bad"), *[NONE] * 6)
    started = run.provenance
    return (
        name,
        Cell(run.basis, basis=run.basis),
        Cell(run.config.key, code=True),
        Cell(str(run.workload.seed)),
        _missing(started)
        if isinstance(started, Missing)
        else Cell(timestamp(started.started_at), f"up after {format_duration(run.startup_s)}"),
        _client(run.client),
        _contention(run.contention),
        _differs(run),
    )


def _missing(value: Missing) -> Cell:
    return Cell("not measured", one_line(value.missing, 80), "muted")


def _client(check: ClientCheck | Missing) -> Cell:
    if isinstance(check, Missing):
        return _missing(check)
    tone: Tone = "plain" if check.verdict == "ok" else "bad"
    return Cell(f"{check.verdict}, {check.cpu_ratio:.2f} of a core", one_line(check.reason, 120), tone)


def _contention(found: Contention | Missing) -> Cell:
    if isinstance(found, Missing):
        return _missing(found)
    tone: Tone = "bad" if found.contended else "plain"
    return Cell(f"{found.other_cores:.2f} cores", one_line(found.reason, 120), tone)


def _differs(run: Run) -> Cell:
    if isinstance(run.effective, Missing):
        return _missing(run.effective)
    if not run.effective.differs:
        return Cell("none")
    listed = "; ".join(f"{name}: {text}" for name, text in run.effective.differs.items())
    return Cell(one_line(listed, 200), tone="bad")


def limits_section(report: LoopReport, runs: Mapping[str, Run]) -> Section:
    """What a reader must not take for measured."""
    groups = (
        ("Assumed", _assumed(report)),
        ("Not measured", _unseen(report)),
        ("Notes of the loop", list(report.notes)),
        ("Notes of the comparison", list(report.verdict.notes) if report.verdict else []),
        ("Notes of the runs", [f"{run.run_id}: {note}" for run in runs.values() for note in run.notes]),
    )
    blocks = tuple(Bullets(tuple(clean(item) for item in _unique(items)), title) for title, items in groups if items)
    lead = "What the numbers above do not say." if blocks else "Nothing was assumed and nothing is known to be missing."
    return Section("limits", "Assumed and not measured", lead, blocks)


def _assumed(report: LoopReport) -> list[str]:
    model = report.model.assumed if report.model else ()
    return [*model, *(report.ledger.assumed if report.ledger else ())]


def _unseen(report: LoopReport) -> list[str]:
    items = [f"naive run: {item}" for item in report.diagnosis_before.unseen]
    if report.diagnosis_after is not None:
        items += [f"{after_name(report)} run: {item}" for item in report.diagnosis_after.unseen]
    items += [
        f"trial {trial.n} ({words(trial.status)}): {trial.cause}"
        for trial in report.trials
        if trial.measured is None and trial.cause
    ]
    if report.verdict is None:
        items.append("the change was not verified with repeats")
    elif report.verdict.quality.verdict == "not_run":
        items.append(f"quality of the answers: {report.verdict.quality.reason}")
    return items


def _unique(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))
