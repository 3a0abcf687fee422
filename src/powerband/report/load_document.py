"""One run of the load generator as a page: was the promise kept, what was delivered and when, was the client honest."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from powerband.records.columns import NEVER, Columns, Floats, Times
from powerband.records.metrics import Distribution, Metrics
from powerband.records.run import ClientCheck, Run
from powerband.records.slo import Slo
from powerband.records.units import NS_PER_S, format_duration, ns_to_s
from powerband.records.value import Missing
from powerband.report.document import (
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
    missing_cell,
)
from powerband.report.format import clean, one_line, percent, significant, slo_text, timestamp
from powerband.report.plots import Curve, distribution_plot, rate_plot
from powerband.report.svg import nice_step

_BINS = 120
_LATENCIES = (
    ("ttft_s", "TTFT"), ("ttft_from_send_s", "TTFT, from the sending"), ("tpot_s", "TPOT"), ("itl_s", "ITL"),
    ("e2e_s", "E2E"),
)  # fmt: skip
_DUE, _CAME = "naive", "chosen"  # colours of the stylesheet


def load_document(run: Run, columns: Columns, slo: Slo | None, notes: Sequence[str]) -> Document:
    """The page's content from what the figures of a run need (``columns``); ``notes`` are said as they stand."""
    metrics = columns.metrics(slo, run.end_ns)
    sections = [_delivered(metrics, slo), _client(run.client)]
    if len(columns):
        sections[1:1] = [_latency(columns, slo), _over_time(columns, run.end_ns)]
    if columns.errors:
        sections.append(_errors(columns.errors, len(columns), columns.first_error))
    return Document(
        title="Load",
        subtitle=one_line(run.workload.source, 120),
        stamp="" if isinstance(run.provenance, Missing) else timestamp(run.provenance.started_at),
        headline=_headline(run, metrics, slo),
        sections=(*sections, _origin(run, notes)),
    )


def _headline(run: Run, metrics: Metrics, slo: Slo | None) -> Headline:
    delivered = f"{significant(metrics.output_tokens_per_s)} output tokens/s"
    counted = (
        f"{metrics.completed:,} of {metrics.requests:,} requests completed in {format_duration(metrics.duration_s)}"
    )
    details = [f"{counted}, {delivered}"]
    if slo is None or metrics.attainment is None:
        answer, figure, subject = "Measured", delivered, f"{metrics.errors:,} errors, {metrics.dropped:,} dropped"
    else:
        kept = metrics.attainment >= slo.attainment
        answer, figure = ("Promise kept" if kept else "Promise missed"), percent(metrics.attainment)
        subject = f"of the requests sent met {slo_text(slo)}"
    if run.unfit is not None:
        kind, reason = run.unfit
        answer = f"{kind.replace('_', '-').capitalize()}: not to be used"
        details.insert(0, one_line(reason, 300))
    return Headline(answer, figure, subject, "", f"{answer}: {figure} {subject}", tuple(details))


def _delivered(metrics: Metrics, slo: Slo | None) -> Section:
    names = ("mean", "p50", "p90", "p99")
    columns = (Column("Latency"), *(Column(f"{name}, ms", numeric=True, basis="measured") for name in names))
    rows: list[tuple[Cell, ...]] = []
    for field, label in _LATENCIES:
        seen: Distribution | Missing = getattr(metrics, field)
        if isinstance(seen, Missing):
            rows.append((Cell(label), missing_cell(seen), *(Cell("–"),) * 3))
        else:
            rows.append((Cell(label), *(Cell(significant(1e3 * getattr(seen, name))) for name in names)))
    rates = [
        ("Completed requests/s", significant(metrics.request_rate_per_s)),
        ("Output tokens/s", significant(metrics.output_tokens_per_s)),
        ("Total tokens/s", significant(metrics.total_tokens_per_s)),
        ("Errors, dropped", f"{metrics.errors:,}, {metrics.dropped:,}"),
    ]
    if metrics.goodput_per_s is not None and metrics.attainment is not None:
        rates += [("SLO", slo_text(slo)), ("Attainment", percent(metrics.attainment))]
        rates += [("Goodput, requests/s", significant(metrics.goodput_per_s))]
    lead = "TTFT and E2E count from the instant at which a request was due, whenever it was really sent."
    shown = Table("Rates", (Column("What"), Column("Value", wide=True)), tuple((Cell(a), Cell(b)) for a, b in rates))
    return Section("delivered", "Delivered", lead, (Table("Latencies", columns, tuple(rows)), shown))


def _latency(columns: Columns, slo: Slo | None) -> Section:
    limits = {"ttft_s": slo and slo.ttft_s, "tpot_s": slo and slo.tpot_s, "e2e_s": slo and slo.e2e_s}
    figures = []
    for field, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E")):
        limit = limits[field]
        curve = Curve(_CAME, tuple(columns.latencies_s(field).tolist()), len(columns))
        shown = (limit, f"SLO {format_duration(limit)}") if limit else None
        svg = distribution_plot(f"{label} of each request", [curve], shown, label)
        if svg is not None:
            figures.append(Figure(label, svg))
    lead = "Each curve is over all requests sent, so where it meets a limit is the share of requests that kept it."
    if not figures:
        return Section("latency", "Latency", lead, (Text("No request was answered.", "muted"),))
    return Section("latency", "Latency", lead, _first_wide(figures))


def _over_time(columns: Columns, end_ns: int) -> Section:
    start_ns = int(columns.t_sched_ns.min())
    span_s = max(columns.window_s(end_ns), 0.001)
    bin_s = max(nice_step(span_s, _BINS), 0.001)
    bins = int(span_s / bin_s) + 1
    due, ttft = columns.in_order("ttft_s")
    _, e2e = columns.in_order("e2e_s")
    done = ~np.isnan(e2e)
    ended = due[done] + (e2e[done] * NS_PER_S).astype(np.int64)
    rates = [(_DUE, _per_s(due, start_ns, bin_s, bins)), (_CAME, _per_s(ended, start_ns, bin_s, bins))]
    sent = columns.t_send_ns[columns.t_send_ns != NEVER]
    flying = np.cumsum(_counts(sent, start_ns, bin_s, bins) - _counts(ended, start_ns, bin_s, bins))
    each = format_duration(bin_s)
    figures = (
        Figure("Requests/s due and completed", rate_plot("Requests over time", rates, bin_s, "requests/s"),
               f"Counted in bins of {each}.", ((f"k-{_DUE}", "due"), (f"k-{_CAME}", "completed"))),
        Figure("Median TTFT", rate_plot("TTFT over time", [(_CAME, _medians_ms(due, ttft, start_ns, bin_s, bins))],
               bin_s, "TTFT, ms"), f"Of the requests due in each {each}; a gap where none was answered."),
        Figure("In flight", rate_plot("In flight", [(_CAME, flying.tolist())], bin_s, "requests"),
               "Sent less completed at the end of each bin; those that failed or were dropped stay counted."),
    )  # fmt: skip
    lead = "A server that keeps up completes what is due, and what is in flight does not grow."
    return Section("time", "Over time", lead, _first_wide(figures))


def _first_wide(figures: Sequence[Figure]) -> tuple[Block, ...]:
    """The first over the page's width, the others side by side."""
    return (Figures((figures[0],)), Figures(tuple(figures[1:]))) if len(figures) > 1 else (Figures(tuple(figures)),)


def _counts(times: Times, start_ns: int, bin_s: float, bins: int) -> Floats:
    places = np.clip((times - start_ns) / NS_PER_S / bin_s, 0, bins - 1).astype(np.int64)
    return np.bincount(places, minlength=bins).astype(np.float64)


def _per_s(times: Times, start_ns: int, bin_s: float, bins: int) -> list[float]:
    rates: list[float] = (_counts(times, start_ns, bin_s, bins) / bin_s).tolist()
    return rates


def _medians_ms(due: Times, values: Floats, start_ns: int, bin_s: float, bins: int) -> list[float]:
    edges = start_ns + np.arange(1, bins) * bin_s * NS_PER_S
    parts = np.split(values, np.searchsorted(due, edges))
    known = [part[~np.isnan(part)] for part in parts]
    return [1e3 * float(np.median(part)) if part.size else math.nan for part in known]


def _client(client: ClientCheck | Missing) -> Section:
    if isinstance(client, Missing):
        return Section("client", "Client", f"Not checked: {one_line(client.missing, 200)}.", ())
    columns = (Column("What"), Column("p50, ms", numeric=True), Column("p99, ms", numeric=True))
    delays = (("Start behind the schedule", client.schedule_delay_s), ("Event loop behind", client.loop_lag_s))
    rows = [
        (Cell(label), missing_cell(seen), Cell("–"))
        if isinstance(seen, Missing)
        else (Cell(label), Cell(significant(1e3 * seen.p50)), Cell(significant(1e3 * seen.p99)))
        for label, seen in delays
    ]
    blocks: list[Block] = [Table("The load generator's own delays", columns, tuple(rows))]
    used = f"The busiest client process used {percent(client.cpu_ratio)} of a core."
    if client.offered_per_s is not None and client.sent_per_s is not None:
        used += f" Offered {significant(client.offered_per_s)} requests/s, sent {significant(client.sent_per_s)}."
    blocks.append(Text(used))
    tone = "was not the limit" if client.verdict == "ok" else "WAS the limit"
    return Section("client", "Client", f"The load generator {tone}: {one_line(client.reason, 300)}.", tuple(blocks))


def _errors(errors: Mapping[str, int], sent: int, first: str | None) -> Section:
    rows = sorted(errors.items(), key=lambda item: -item[1])
    table = Table(
        "Errors by kind",
        (Column("Kind"), Column("Requests", numeric=True), Column("Share of those sent", numeric=True)),
        tuple((Cell(one_line(kind, 60), code=True), Cell(f"{n:,}"), Cell(percent(n / sent))) for kind, n in rows),
    )
    return Section("errors", "Errors", f"The first one: {one_line(first or 'unknown', 200)}", (table,))


def _origin(run: Run, notes: Sequence[str]) -> Section:
    traffic = run.workload
    facts = [f"run {clean(run.run_id)}, {ns_to_s(run.end_ns):.1f} s on its clock", f"traffic: {clean(traffic.source)}"]
    facts += [f"scaling: {clean(traffic.scaling)}"] if traffic.scaling else []
    blocks: list[Block] = [Bullets(tuple(facts), "The run")]
    blocks += [Bullets(tuple(clean(note) for note in notes), "Notes")] if notes else []
    if isinstance(run.provenance, Missing):
        return Section("origin", "Evidence", "Where it comes from was not recorded.", tuple(blocks))
    origin = run.provenance
    lead = f"powerband {clean(origin.powerband)} on Python {clean(origin.python)}, host {clean(origin.host)}."
    return Section("origin", "Evidence", lead, (*blocks, Code(clean(origin.command), "Run it again")))
