"""A ladder as a document: the table from naive to tuned, each rung predicted and measured, and what limited it."""

from powerband.records.finding import Cause
from powerband.records.ladder import LadderReport, Level, Rung
from powerband.records.metrics import Distribution
from powerband.records.units import format_bytes, format_duration
from powerband.records.value import Measured, Missing, known
from powerband.report.document import (
    NONE,
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Figure,
    Figures,
    Headline,
    Section,
    Table,
    Text,
    Tone,
)
from powerband.report.format import (
    clean,
    config_text,
    number_interval,
    one_line,
    percent,
    ratio,
    significant,
    slo_text,
    timestamp,
    words,
)
from powerband.report.plots import Estimate, estimates_plot

_GATED = "to be gated"


def ladder_document(report: LadderReport) -> Document:
    """Answer first: the table, then prediction against measurement, then the limits, then where it comes from."""
    model, device = report.model, report.device
    title = one_line(model.name, 120) if model else "ladder"
    return Document(
        title=title,
        subtitle=f"from naive to tuned{f', {one_line(device.name, 60)}' if device else ''}",
        stamp=_stamp(report),
        headline=_headline(report),
        sections=(_table_section(report), _predicted_section(report), _limits_section(report), _origin_section(report)),
    )


def _stamp(report: LadderReport) -> str:
    origin = report.provenance
    when = "" if isinstance(origin, Missing) else f", {timestamp(origin.started_at)}"
    return f"session {one_line(report.session_id, 60)}{when}"


def _headline(report: LadderReport) -> Headline:
    """What is recommended comes first; a faster rung that a quality gate has not passed comes second."""
    base, chosen, fastest = first_done(report), _by_n(report, report.chosen), _by_n(report, report.fastest)
    details = [f"SLO: {slo_text(report.slo)}.", f"Stopped: {clean(report.stopped_because)}."]
    if fastest is not None and fastest.plan.gated and (more := gain_of(fastest, base)) is not None:
        faster = f"{significant(more)}×, rung {fastest.n}, {clean(fastest.plan.name)}"
        details.insert(0, f"Faster, {_GATED}: {faster}; not recommended before a quality gate has passed it.")
    gain = gain_of(chosen, base)
    if base is None or chosen is None or gain is None or chosen.n == base.n:
        sentence = "no rung above the first can be recommended"
        return Headline("no change", "No change", sentence, "", sentence, tuple(details))
    subject = f"output tokens/s, rung {chosen.n} ({clean(chosen.plan.name)}) against rung {base.n}"
    figure = f"{significant(gain)}×"
    return Headline("recommended", figure, subject, "", f"{figure} {subject}", tuple(details))


def gain_of(rung: Rung | None, base: Rung | None) -> float | None:
    return None if rung is None or base is None else _ratio(rung.tokens_per_s, base.tokens_per_s)


def ladder_table(report: LadderReport) -> Table:
    """One row a rung: the load with most tokens/s within the SLO, and what one request alone takes."""
    columns = (
        Column("Rung", numeric=True),
        Column("Step"),
        Column("Busy", numeric=True, basis="measured"),
        Column("MBU", numeric=True, basis="computed"),
        Column("Memory", numeric=True, basis="measured"),
        Column("In flight", numeric=True),
        Column("Tokens/s", numeric=True, basis="measured"),
        Column("Gain", numeric=True, basis="computed"),
        Column("TTFT p50 / p99", numeric=True, basis="measured"),
        Column("TPOT p50 / p99", numeric=True, basis="measured"),
        Column("Latency", numeric=True, basis="measured", note="mean"),
        Column("Alone", numeric=True, basis="measured", note="one at a time"),
    )
    base = first_done(report)
    rows = tuple(_row(rung, base) for rung in report.rungs)
    return Table("From naive to tuned, at the best load within the SLO", columns, rows)


def _row(rung: Rung, base: Rung | None) -> tuple[Cell, ...]:
    if rung.status != "done":
        tone: Tone = "muted" if rung.status == "left_out" else "bad"
        return (Cell(str(rung.n)), Cell(clean(rung.plan.name), words(rung.status), tone), *[NONE] * 10)
    level = rung.shown
    assert level is not None  # a rung that is done has its offered load
    metrics, use = level.metrics, level.use
    gain = gain_of(rung, base)
    late = "" if rung.best is not None else "SLO not held"
    gated = f"{_GATED}; " if rung.plan.gated else ""
    return (
        Cell(str(rung.n)),
        Cell(clean(rung.plan.name), gated + words(rung.verdict or "undecided")),
        share_cell(use.busy_ratio if use else None),
        share_cell(use.bandwidth_ratio if use else None),
        _bytes(use.memory_bytes if use else Missing(missing="not read")),
        Cell(str(level.concurrency)),
        NONE if level.tokens_per_s is None else Cell(significant(level.tokens_per_s), late),
        NONE if gain is None else Cell(ratio(gain)),
        _pair(metrics.ttft_s if metrics else None),
        _pair(metrics.tpot_s if metrics else None),
        mean_cell(level),
        mean_cell(rung.alone),
    )


def _table_section(report: LadderReport) -> Section:
    done = sum(rung.status == "done" for rung in report.rungs)
    lead = (
        f"{done} of {report.planned} rungs measured by the same client with the same requests; "
        f"engines ran for {format_duration(report.engine_seconds)} in all. Latency is a mean, alone that of one "
        "request at a time; under each step stands the limit that was located with the offered load."
    )
    blocks: list[Block] = [ladder_table(report), Code(clean(report.start_command), "Start the recommended engine")]
    return Section("ladder", "The ladder", lead, tuple(blocks))


def _predicted_section(report: LadderReport) -> Section:
    columns = (
        Column("Rung", numeric=True),
        Column("Step"),
        Column("In flight", numeric=True),
        Column("Predicted tokens/s", numeric=True, basis="simulated"),
        Column("Measured tokens/s", numeric=True, basis="measured"),
        Column("Measured / predicted", numeric=True, basis="computed"),
        Column("SLO held"),
        Column("Run"),
    )
    rows, inside, known_pairs = [], 0, 0
    for rung in report.rungs:
        for level in rung.levels:
            rows.append(_predicted_row(rung, level))
            hit = _inside(level)
            known_pairs += hit is not None
            inside += hit is True
    lead = f"Predicted before each load was sent: {inside} of {known_pairs} measurements lie in their 90 % interval."
    lead += " Here tokens are those of whole answers over the whole window, filling and cut-off included."
    blocks: list[Block] = [Table("Every load", columns, tuple(rows))]
    if (figure := _figure(report)) is not None:
        blocks.insert(0, Figures((figure,)))
    return Section("predicted", "Predicted and measured", lead, tuple(blocks))


def _figure(report: LadderReport) -> Figure | None:
    """One row a rung, at the load that stands for it."""
    title = "Predicted and measured output tokens/s"
    rows = [(rung, rung.shown) for rung in report.rungs if rung.status == "done"]
    drawn = [_estimate(rung, level) for rung, level in rows if level is not None]
    svg = estimates_plot(title, drawn, None, "output tokens/s of whole answers")
    if svg is None:
        return None
    legend = (("k-interval", "predicted, with interval"), ("k-good", "measured"), ("k-plain", "measured, to be gated"))
    return Figure(title, svg, legend=legend)


def _estimate(rung: Rung, level: Level) -> Estimate:
    predicted, value = level.predicted, level.completed_tokens_per_s
    name = f"Rung {rung.n}: {one_line(rung.plan.name, 40)}, {level.concurrency} in flight"
    seen = "nothing" if value is None else significant(value)
    expected = "nothing" if predicted is None else significant(predicted.objective)
    return Estimate(
        label=name,
        tooltip=f"{name}; predicted {expected}; measured {seen}",
        predicted=predicted.objective if predicted else None,
        low=predicted.interval.low if predicted else None,
        high=predicted.interval.high if predicted else None,
        measured=value,
        tone="plain" if rung.plan.gated else "good",
        note="",
    )


def _predicted_row(rung: Rung, level: Level) -> tuple[Cell, ...]:
    predicted, value = level.predicted, level.completed_tokens_per_s
    hit = _inside(level)
    note = "" if hit is None else "inside" if hit else "outside"
    return (
        Cell(str(rung.n)),
        Cell(clean(rung.plan.name)),
        Cell(str(level.concurrency)),
        Cell(significant(predicted.objective), number_interval(predicted.interval)) if predicted else NONE,
        Cell("not measured", one_line(level.cause or "", 160), "bad") if value is None else Cell(significant(value)),
        Cell(ratio(value / predicted.objective), note) if value and predicted and predicted.objective > 0 else NONE,
        NONE if level.holds is None else Cell("yes" if level.holds else "no", tone="good" if level.holds else "plain"),
        Cell(one_line(level.run_id or "–"), code=level.run_id is not None),
    )


def _inside(level: Level) -> bool | None:
    if level.predicted is None or level.completed_tokens_per_s is None:
        return None
    return level.predicted.interval.low <= level.completed_tokens_per_s <= level.predicted.interval.high


def _limits_section(report: LadderReport) -> Section:
    columns = (
        Column("Rung", numeric=True),
        Column("Step"),
        Column("Change", wide=True),
        Column("Limit located"),
        Column("Evidence", wide=True),
        Column("The next rung"),
    )
    rows = tuple(_limit_row(report, index) for index in range(len(report.rungs)))
    lead = f"What limited each rung with {report.concurrency} requests in flight, and whether the next one removed it."
    return Section("limits", "What limited each rung", lead, (Table("Limits", columns, rows),))


def _limit_row(report: LadderReport, index: int) -> tuple[Cell, ...]:
    rung = report.rungs[index]
    above = next((one for one in report.rungs[index + 1 :] if one.status == "done"), None)
    settings = Cell(clean(rung.plan.change), config_text(rung.plan.config))
    if rung.status != "done":
        tone: Tone = "muted" if rung.status == "left_out" else "bad"
        return (Cell(str(rung.n)), Cell(clean(rung.plan.name)), settings, Cell(words(rung.status), tone=tone),
                Cell(clean(rung.cause or "")), NONE)  # fmt: skip
    return (
        Cell(str(rung.n)),
        Cell(clean(rung.plan.name)),
        settings,
        Cell(words(rung.verdict or "undecided")),
        Cell(clean(rung.reason)),
        _removed(rung.verdict, above),
    )


def _removed(verdict: Cause | None, above: Rung | None) -> Cell:
    """Whether the next rung was meant to remove this limit, and whether it is still the limit there."""
    if verdict is None or above is None:
        return NONE
    if verdict not in above.plan.removes:
        return Cell("addresses another limit", tone="muted")
    gone = above.verdict != verdict
    return Cell("removed it" if gone else "meets it again", f"rung {above.n}", "good" if gone else "plain")


def _origin_section(report: LadderReport) -> Section:
    traffic, origin = report.traffic, report.provenance
    lines = [
        f"Traffic: {clean(traffic.source)}{f' ({clean(traffic.scaling)})' if traffic.scaling else ''}; "
        f"{significant(traffic.input_tokens_mean)} input and {significant(traffic.output_tokens_mean)} output tokens "
        f"on average, longest {traffic.longest_tokens:,}; {report.concurrency} kept in flight as the offered load.",
        "A load ends with its window. Tokens/s counts every token that arrived once the loop had turned over. "
        "Latencies leave out the burst that fills the loop and requests cut off before they could miss the SLO.",
        "Busy: share of time in which any kernel ran, by the driver. MBU: bytes of weights and KV that the decode "
        "steps had to read, by the model's shape and the tokens' times, over the device's datasheet bandwidth.",
        f"{_GATED.capitalize()}: the step changes the answers; it is recommended only after a quality gate.",
        *map(clean, report.notes),
    ]
    blocks: list[Block] = [Bullets(tuple(lines))]
    if not isinstance(origin, Missing):
        blocks += [
            Text(f"{clean(origin.host)}; powerband {clean(origin.powerband)}, Python {clean(origin.python)}.", "muted"),
            Code(clean(origin.command), "Run it again"),
        ]
    versions = dict.fromkeys(clean(rung.version) for rung in report.rungs if rung.version)
    if versions:
        blocks.append(Bullets(tuple(versions), "Engines"))
    return Section("origin", "Where it comes from", "Raw runs lie in the journal under the ids above.", tuple(blocks))


def first_done(report: LadderReport) -> Rung | None:
    return next((rung for rung in report.rungs if rung.status == "done"), None)


def _by_n(report: LadderReport, n: int | None) -> Rung | None:
    return next((rung for rung in report.rungs if rung.n == n), None)


def _ratio(value: Measured, base: Measured) -> float | None:
    high, low = known(value), known(base)
    return high / low if high is not None and low else None


def share_cell(value: Measured | None) -> Cell:
    number = known(value)
    return NONE if number is None else Cell(percent(number, 0))


def _bytes(value: Measured) -> Cell:
    number = known(value)
    return NONE if number is None else Cell(format_bytes(round(number)))


def _pair(value: Distribution | Missing | None) -> Cell:
    if not isinstance(value, Distribution):
        return NONE
    return Cell(f"{format_duration(value.p50)} / {format_duration(value.p99)}")


def mean_cell(level: Level | None) -> Cell:
    value = level.metrics.e2e_s if level is not None and level.metrics is not None else None
    return Cell(format_duration(value.mean)) if isinstance(value, Distribution) else NONE
