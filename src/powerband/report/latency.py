"""Latency and throughput of the naive and the chosen runs: over requests, and over time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from powerband.records.metrics import e2e_s, tpot_s, ttft_s
from powerband.records.request import RequestTrace
from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.units import format_duration, ns_to_s
from powerband.report.compare import after_name
from powerband.report.document import Block, Cell, Column, Figure, Figures, Section, Table, Text, missing_cell
from powerband.report.format import one_line, significant, value_of
from powerband.report.plots import Curve, Span, distribution_plot, rate_plot, waterfall
from powerband.report.svg import nice_step
from powerband.report.trials import run_key, run_of, trial_of

_ROWS = 120  # requests drawn in a waterfall; more would be thinner than a pixel
_BINS = 60


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one config, the trial's own first; ``style`` is its colour in the plots."""

    style: str
    label: str
    runs: list[Run]


def latency_section(report: LoopReport, runs: Mapping[str, Run]) -> Section:
    """Plots of the raw runs, and their percentiles as a table."""
    best = None if report.best_trial == report.baseline_trial else report.best_trial
    found = (
        Side("naive", "naive", _same_config(report, report.baseline_trial, runs)),
        Side("chosen", after_name(report), _same_config(report, best, runs)),
    )
    sides = [side for side in found if side.runs]
    lead = "Each curve is over all requests sent, so where it meets a limit is the share of requests that kept it."
    if not sides:
        return Section("latency", "Latency", "Not drawn: the raw runs are not in the journal.", ())
    groups = (_distributions(report.slo, sides), _over_time(sides))
    blocks: list[Block] = [Figures(tuple(group)) for group in groups if group]
    blocks.append(_percentiles(report.session_id, sides))
    if any(len(side.runs) > 1 for side in sides):
        counts = ", ".join(f"{len(side.runs)} {side.label}" for side in sides)
        text = f"Thin lines are further runs of the same settings ({counts} in all)."
        blocks.append(Text(text, "muted"))
    return Section("latency", "Latency", lead, tuple(blocks))


def _same_config(report: LoopReport, n: int | None, runs: Mapping[str, Run]) -> list[Run]:
    """The trial's own run, then every other usable run of the same settings."""
    trial = trial_of(report, n)
    if trial is None:
        return []
    own = run_of(trial, runs)
    others = [
        run_of(other, runs)
        for other in report.trials
        if other.n != trial.n and other.status == "done" and other.config.key == trial.config.key
    ]
    return [run for run in [own, *others] if run is not None and run.traces]


def _legend(sides: Sequence[Side]) -> tuple[tuple[str, str], ...]:
    return tuple((f"k-{side.style}", side.label) for side in sides)


def _distributions(slo: Slo | None, sides: Sequence[Side]) -> list[Figure]:
    limits = {
        "TTFT": slo.ttft_s if slo else None,
        "TPOT": slo.tpot_s if slo else None,
        "E2E": slo.e2e_s if slo else None,
    }
    measures: list[tuple[str, str, Callable[[RequestTrace], float | None]]] = [
        ("TTFT", "time to first token", ttft_s),
        ("TPOT", "time per output token", tpot_s),
    ]
    if limits["E2E"] is not None:
        measures.append(("E2E", "whole answer", e2e_s))
    figures = []
    for short, name, measure in measures:
        curves = [curve for side in sides for curve in _curves(side, measure)]
        limit = limits[short]
        shown = None if limit is None else (limit, f"SLO {format_duration(limit)}")
        svg = distribution_plot(f"{short} of each request", curves, shown, name)
        if svg is not None:
            figures.append(Figure(f"{short}, {name}", svg, legend=_legend(sides)))
    return figures


def _curves(side: Side, measure: Callable[[RequestTrace], float | None]) -> list[Curve]:
    curves = []
    for index, run in enumerate(side.runs):
        values = [measure(trace) for trace in run.traces if trace.status == "ok"]
        known = tuple(value for value in values if value is not None)
        curves.append(Curve(side.style, known, max(len(run.traces), 1), thin=index > 0))
    return curves


def _over_time(sides: Sequence[Side]) -> list[Figure]:
    horizon = max(_end_s(side.runs[0]) for side in sides)
    bin_s = max(nice_step(horizon, _BINS), 0.001)
    rates = [(side.style, token_rates(side.runs[0], bin_s)) for side in sides]
    caption = f"Tokens that arrived in each {format_duration(bin_s)}."
    figures = [
        Figure(
            "Output tokens/s over time",
            rate_plot("Output tokens/s over time", rates, bin_s, "output tokens/s"),
            caption,
            _legend(sides),
        )
    ]
    for side in sides:
        run = side.runs[0]
        spans = _spans(run)
        caption = "Pale: waiting for the first token. Solid: streaming."
        if len(run.traces) > len(spans):
            caption += f" Every {-(-len(run.traces) // _ROWS)}th of {len(run.traces)} requests."
        title = f"Requests of the {side.label} run"
        figures.append(Figure(title, waterfall(title, spans, horizon, side.style), caption))
    return figures


def _start_ns(run: Run) -> int:
    return min(trace.t_sched_ns for trace in run.traces)


def _end_s(run: Run) -> float:
    return max(ns_to_s(run.end_ns - _start_ns(run)), 0.001)


def token_rates(run: Run, bin_s: float) -> list[float]:
    """Output tokens/s in each bin, by the arrival of every chunk of every request."""
    start = _start_ns(run)
    counts = [0] * math.ceil(_end_s(run) / bin_s)
    for trace in run.traces:
        for t_ns, tokens in zip(trace.t_chunks_ns, trace.chunk_tokens, strict=True):
            counts[min(int(ns_to_s(t_ns - start) / bin_s), len(counts) - 1)] += tokens
    return [count / bin_s for count in counts]


def _spans(run: Run) -> list[Span]:
    step = -(-len(run.traces) // _ROWS)
    ordered = sorted(run.traces, key=lambda trace: trace.t_sched_ns)[::step]
    start = _start_ns(run)
    return [_span(trace, start, run.end_ns) for trace in ordered]


def _span(trace: RequestTrace, start_ns: int, end_ns: int) -> Span:
    last = trace.t_end_ns if trace.t_end_ns is not None else end_ns
    first, per_token = ttft_s(trace), tpot_s(trace)
    parts = [
        f"request {trace.index}: {trace.input_tokens} in, {trace.output_tokens} of {trace.output_tokens_asked} out"
    ]
    parts.append("no token came" if first is None else f"TTFT {format_duration(first)}")
    if per_token is not None:
        parts.append(f"TPOT {format_duration(per_token)}")
    if trace.status != "ok":
        parts.append(f"{trace.status}: {one_line(trace.error or 'the run ended first', 80)}")
    return Span(
        start_s=ns_to_s(trace.t_sched_ns - start_ns),
        first_s=None if not trace.t_chunks_ns else ns_to_s(trace.t_chunks_ns[0] - start_ns),
        end_s=ns_to_s(last - start_ns),
        ok=trace.status == "ok",
        tooltip=", ".join(parts),
    )


def _percentiles(session_id: str, sides: Sequence[Side]) -> Table:
    """Percentiles of the drawn runs, one row a run, so that the spread between repeats can be read."""
    names = (
        "ttft_p50_s",
        "ttft_p90_s",
        "ttft_p99_s",
        "tpot_p50_s",
        "tpot_p90_s",
        "tpot_p99_s",
        "itl_p99_s",
        "e2e_p99_s",
    )
    heads = ("TTFT p50", "TTFT p90", "TTFT p99", "TPOT p50", "TPOT p90", "TPOT p99", "ITL p99", "E2E p99")
    columns = [Column("Run"), Column("Settings"), Column("Completed", numeric=True)]
    columns += [Column(f"{head}, ms", numeric=True, basis="measured") for head in heads]
    rows = []
    for side in sides:
        for run in side.runs:
            metrics = run.metrics()
            cells = [value_of(metrics, name) for name in names]
            rows.append(
                (
                    Cell(run_key(run.run_id, session_id), code=True),
                    Cell(side.label, swatch=f"k-{side.style}"),
                    Cell(f"{metrics.completed} of {metrics.requests}"),
                    *(Cell(significant(v * 1000)) if isinstance(v, float) else missing_cell(v) for v in cells),
                )
            )
    return Table("Percentiles of the runs drawn", tuple(columns), tuple(rows))
