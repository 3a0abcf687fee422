"""Where the device's memory goes: the ledger as a bar and a table, and what the KV cache holds."""

from powerband.records.memory import MemoryLedger, MemoryLine
from powerband.records.units import format_bytes
from powerband.records.value import Interval
from powerband.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Entries,
    Entry,
    Figure,
    Figures,
    Section,
    Table,
    Text,
)
from powerband.report.format import clean, one_line, percents, significant
from powerband.report.plots import Part, magnifier, stacked_bar
from powerband.report.svg import Svg

_SWATCHES = {
    "weights": "c1",
    "kv_cache": "c2",
    "activation": "c3",
    "cuda_graphs": "c4",
    "non_torch": "c5",
    "unused": "c0",
}
_LABELS = {"kv_cache": "KV cache", "cuda_graphs": "CUDA graphs", "non_torch": "non-torch"}
_ENLARGE_BELOW = 0.3  # a used part smaller than this share is drawn again, over the whole width


def memory_section(ledger: MemoryLedger | None) -> Section:
    """The ledger as it was accounted before anything was started."""
    if ledger is None:
        lead = "Not accounted: the model or the device of this server is not known here."
        return Section("memory", "Memory", lead, ())
    capacity = ledger.capacity
    blocks: list[Block] = [Figures((_figure(ledger),)), ledger_table(ledger)]
    users = "not computed: no traffic was given"
    if capacity.users_at_traffic is not None:
        users = f"{significant(capacity.users_at_traffic)} at the mean lengths of this traffic"
    blocks.append(
        Bullets(
            (
                f"KV cache per token: {format_bytes(capacity.kv_bytes_per_token)} (computed)",
                f"Tokens the KV cache holds: {capacity.kv_tokens:,} (computed)",
                f"Sequences of full length at once: {significant(capacity.max_concurrency)} (computed)",
                f"Users at once: {users}",
            ),
            "What the cache holds",
        )
    )
    if ledger.remedies:
        entries = tuple(
            Entry(
                clean(remedy.name),
                "",
                "computed",
                0.0,
                (("Change", clean(remedy.change)), ("Brings", clean(remedy.predicted))),
            )
            for remedy in ledger.remedies
        )
        blocks.append(Entries("What would hold more", entries))
    if ledger.ranks > 1:
        blocks.append(Text(f"Per rank; there are {ledger.ranks} ranks.", "muted"))
    return Section("memory", "Memory", _lead(ledger), tuple(blocks))


def _lead(ledger: MemoryLedger) -> str:
    used, whole = format_bytes(_used(ledger)), format_bytes(ledger.memory_bytes)
    fit = "Fits" if ledger.fits else "Does not fit"
    return f"{fit}: {clean(ledger.model)} needs {used} of the {whole} of {clean(ledger.device)}."


def _used(ledger: MemoryLedger) -> int:
    return sum(line.bytes for line in ledger.lines if line.name != "unused")


def _figure(ledger: MemoryLedger) -> Figure:
    whole = sum(line.bytes for line in ledger.lines if line.bytes > 0)
    title = f"Memory of {one_line(ledger.device, 60)}, {format_bytes(ledger.memory_bytes)}"
    svg = stacked_bar(title, [_part(line) for line in ledger.lines if line.bytes > 0])
    used = [line for line in ledger.lines if line.name != "unused" and line.bytes > 0]
    share = sum(line.bytes for line in used) / whole if whole else 1.0
    if used and share < _ENLARGE_BELOW:
        ordered = [*used, *(line for line in ledger.lines if line.name == "unused")]
        svg = stacked_bar(title, [_part(line) for line in ordered if line.bytes > 0])
        enlarged = stacked_bar(f"The part in use, {format_bytes(_used(ledger))}", [_part(line) for line in used])
        svg = Svg(svg + magnifier(share) + enlarged)
    return Figure(title, svg)


def _part(line: MemoryLine) -> Part:
    name = _label(line)
    return Part(name, line.bytes, _SWATCHES[line.name], f"{name}: {format_bytes(line.bytes)}, {line.basis}")


def _label(line: MemoryLine) -> str:
    return _LABELS.get(line.name, line.name)


def ledger_table(ledger: MemoryLedger) -> Table:
    whole = ledger.memory_bytes or 1
    shares = percents([line.bytes / whole for line in ledger.lines])
    rows = [
        (
            Cell(_label(line), swatch=_SWATCHES[line.name]),
            Cell(format_bytes(line.bytes), _interval(line.interval_bytes, line.bytes)),
            Cell(share),
            Cell(line.basis, basis=line.basis),
            Cell(clean(line.why)),
        )
        for line, share in zip(ledger.lines, shares, strict=True)
    ]
    total = sum(line.bytes for line in ledger.lines)
    rows.append(
        (
            Cell("sum"),
            Cell(format_bytes(total)),
            Cell(percents([total / whole])[0]),
            Cell(""),
            Cell(_sum_note(ledger, total)),
        )
    )
    columns = (
        Column("Use"),
        Column("Bytes", numeric=True),
        Column("Share", numeric=True),
        Column("Basis"),
        Column("Why", wide=True),
    )
    return Table("Memory ledger, per rank", columns, tuple(rows))


def _interval(interval: Interval, value: int) -> str:
    if interval.low == interval.high == value:
        return ""
    return f"{interval.level * 100:g} %: {format_bytes(interval.low)} to {format_bytes(interval.high)}"


def _sum_note(ledger: MemoryLedger, total: int) -> str:
    if total == ledger.memory_bytes:
        return "the device's memory"
    return f"the device reports {format_bytes(ledger.memory_bytes)}: the lines do not sum to it"
