"""A diagnosis on one screen: the answer, where the time goes as bars, the findings in order of size."""

from collections.abc import Sequence

from rich.console import JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from powerband.records.finding import Diagnosis, Finding, Proof, Share
from powerband.records.units import format_duration
from powerband.report.format import WHOLES, one_line, percent, percents, words
from powerband.report.text import draw
from powerband.report.width import PIPE_WIDTH

# More findings than this leave the screen; the rest is in --json.
_SHOWN = 4
_LEAST_BAR, _MOST_BAR = 12, 48
# Parts in which the engine does its work; the others are what it waits for.
_WORK = {"prefill", "decode", "kernels"}


def render_diagnosis(diagnosis: Diagnosis, *, width: int = PIPE_WIDTH, color: bool = False) -> str:
    """The verdict and its reason first, then the bars, the findings, and what was not seen."""
    parts: list[RenderableType] = [
        Text.assemble((words(diagnosis.verdict), "bold cyan"), f": {_why(diagnosis)}"),
        Text(_origin(diagnosis), style="dim"),
        Text(""),
    ]
    if diagnosis.breakdown or diagnosis.window_s:
        head = f"Where {format_duration(diagnosis.window_s)} of wall time went"
        parts += [Text(head), bars(diagnosis.breakdown, width), Text("")]
    if diagnosis.request_breakdown and diagnosis.mean_request_s is not None:
        head = f"Where the mean request's {format_duration(diagnosis.mean_request_s)} went"
        parts += [Text(head), bars(diagnosis.request_breakdown, width), Text("")]
    for finding in diagnosis.findings[:_SHOWN]:
        parts += _finding(finding)
    if len(diagnosis.findings) > _SHOWN:
        parts.append(Text(f"and {len(diagnosis.findings) - _SHOWN} smaller findings (--json shows all)", style="dim"))
    shown = [finding.proof for finding in diagnosis.findings[:_SHOWN]]
    parts += [_test(proof) for proof in diagnosis.proofs if proof not in shown]
    parts += [Text(f"Not seen: {one_line(line)}", style="dim") for line in diagnosis.unseen]
    parts += [Text(f"Note: {one_line(line)}", style="dim") for line in diagnosis.notes]
    return draw(parts, width, color)


def _why(diagnosis: Diagnosis) -> str:
    """The size of the verdict; its evidence stands below with the finding, or here where there is none."""
    first = diagnosis.findings[0] if diagnosis.findings else None
    if first is None or first.cause != diagnosis.verdict or not diagnosis.reason.startswith(first.evidence):
        return one_line(diagnosis.reason or "no reason given")
    return f"{percent(first.share)} of {WHOLES[first.of]}"


def _origin(diagnosis: Diagnosis) -> str:
    busy = "" if diagnosis.gpu_busy_ratio is None else f"; GPU busy {percent(diagnosis.gpu_busy_ratio)}"
    return f"from {', '.join(diagnosis.sources) or 'no evidence'}{busy}"


def bars(parts: Sequence[Share], width: int) -> RichTable:
    """One row a part that took time: its name, a bar on a common scale, its share and seconds."""
    shown = [part for part in parts if part.share >= 0.0005]
    table = RichTable.grid(padding=(0, 1))
    sides: tuple[JustifyMethod, ...] = ("left", "left", "right", "right")
    for justify in sides:
        table.add_column(justify=justify, no_wrap=True)
    if not shown:
        table.add_row(Text("  nothing was watched", style="dim"))
        return table
    room = min(max(width - 50, _LEAST_BAR), _MOST_BAR)
    largest = max(part.share for part in shown)
    for part, text in zip(shown, percents([part.share for part in shown]), strict=True):
        style = "cyan" if part.name in _WORK else "yellow"
        length = max(round(room * part.share / largest), 1)
        table.add_row(
            Text("  " + one_line(part.name, 28)),
            Text("█" * length, style=style),
            Text(text),
            Text(format_duration(part.seconds), style="dim"),
        )
    return table


def _test(proof: Proof) -> Text:
    """A test that stands with none of the findings above."""
    said = f"Test of {words(proof.cause)} ({proof.test}): {proof.status}; {proof.reason}"
    return Text(one_line(said), style="dim")


def _finding(finding: Finding) -> list[RenderableType]:
    size = f"{percent(finding.share)} of {WHOLES[finding.of]}, {finding.status}"
    head = Text.assemble((words(finding.cause), "bold"), f"  {size}")
    proof = finding.proof
    tested = ("test", finding.test) if proof is None else ("proof", f"{proof.test}, {proof.change}: {proof.reason}")
    lines = (("evidence", finding.evidence), ("remedy", finding.remedy), tested)
    body = RichTable.grid(padding=(0, 1))
    body.add_column(no_wrap=True, style="dim")
    body.add_column()
    for name, text in lines:
        body.add_row(name, Text(one_line(text)))
    return [head, Padding(body, (0, 0, 0, 2))]
