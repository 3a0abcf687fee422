"""The document of one loop: the answer first, then what it rests on."""

from collections.abc import Mapping

from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.report.breakdown import time_section
from powerband.report.compare import compare_section
from powerband.report.document import Document
from powerband.report.format import one_line, timestamp
from powerband.report.headline import headline
from powerband.report.latency import latency_section
from powerband.report.memory import memory_section
from powerband.report.origin import limits_section, provenance_section, traffic_section
from powerband.report.rounds import rounds_section
from powerband.report.start import start_section
from powerband.report.trials import trial_of, trials_section


def loop_document(report: LoopReport, runs: Mapping[str, Run]) -> Document:
    """All sections in reading order; ``runs`` holds the raw runs by ``Trial.run_id``, and may lack some."""
    baseline = trial_of(report, report.baseline_trial)
    engine = f"on {one_line(baseline.config.engine, 40)}" if baseline else ""
    model = baseline.config.model if baseline else "unknown model"
    dtype = f"{one_line(report.model.weight_dtype, 20)} " if report.model else ""
    device = f", {one_line(report.device.name, 60)}" if report.device else ""
    return Document(
        title=one_line(report.model.name if report.model else model, 120),
        subtitle=f"{dtype}{engine}{device}",
        stamp=f"session {one_line(report.session_id, 60)}, {timestamp(report.provenance.started_at)}",
        headline=headline(report),
        sections=(
            compare_section(report),
            start_section(report, runs),
            memory_section(report.ledger),
            time_section(report),
            rounds_section(report),
            latency_section(report, runs),
            trials_section(report),
            traffic_section(report),
            provenance_section(report, runs),
            limits_section(report, runs),
        ),
    )
