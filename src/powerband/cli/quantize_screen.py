"""How a plan and a card look on a terminal."""

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from powerband.cli.options import terminal
from powerband.records.quantisation import CacheRow, Forecast, PlanRow, QuantCard, Support
from powerband.records.units import format_bytes, format_duration
from powerband.report.text import draw

_WORDS = {"runs": "runs", "slow": "runs, slowly", "unknown": "not known", "refused": "cannot"}


def draw_plan(setting: Any, plan: Any) -> str:
    possible = [row for row in plan.rows if row.support.possible]
    head = [Text(_headline(setting, plan, possible), style="bold")]
    if plan.stored is not None and plan.stored.format != "none" and not plan.stored.possible:
        head.append(Text(f"as it is ({plan.stored.format}): {plan.stored.why}; {_instead(plan.stored)}"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("method", "format", "", "weights", "users", "out tok/s", "TTFT", "TPOT", "prefill", "risk"):
        table.add_column(name, justify="left" if name in ("method", "format", "", "risk") else "right", no_wrap=True)
    if plan.base is not None:
        table.add_row("-", "16 bits", "as it is", *_figures(plan.base), "")
    for row in possible:
        table.add_row(row.method, row.format, _WORDS[row.support.answer], *_figures(row.forecast), row.risk)
    notes = _grouped((text, row.method) for row in possible for text in _notes(row))
    cannot = _grouped((_why_not(row.support), row.method) for row in plan.rows if not row.support.possible)
    parts: list[Any] = [*head, table, Text(_basis(setting, plan), style="dim")]
    parts += [Text("cache", style="bold"), *map(_cache_line, plan.cache)] if plan.cache else []
    parts += [Text("to know", style="bold"), *notes] if notes else []
    parts += [Text("cannot", style="bold"), *cannot] if cannot else []
    parts.append(Text(f"table of {plan.table_version}; quality is measured, not planned: powerband verify --quality"))
    return draw(parts, **terminal())


def _cache_line(row: CacheRow) -> Text:
    settings = " ".join(f"{name}={value}" for name, value in row.settings.items())
    if not row.support.possible:
        return Text(f"{settings}: {_why_not(row.support)}")
    room = f"{row.kv_tokens:,} tokens" if row.kv_tokens is not None else "size not known here"
    users = f", {row.users:.0f} users" if row.users is not None else ""
    return Text(f"{settings}: {_WORDS[row.support.answer]}, {room}{users}")


def _headline(setting: Any, plan: Any, possible: list[PlanRow]) -> str:
    where = f"{setting.config.engine} on {setting.device.name}"
    if not possible:
        return f"Nothing of what was asked runs with {where}."
    best = possible[0]
    saved = ""
    if plan.base is not None and best.forecast is not None:
        saved = f": weights {format_bytes(plan.base.weight_bytes)} -> {format_bytes(best.forecast.weight_bytes)}"
    return f"{len(possible)} of {len(plan.rows)} run with {where}; least risk first, {best.method}{saved}."


def _figures(found: Forecast | None) -> list[str]:
    if found is None:
        return ["", "", "", "", "", ""]
    weights = format_bytes(found.weight_bytes) + ("" if found.fits else " !")
    return [
        weights,
        "" if found.users is None else f"{found.users:.0f}",
        "" if found.output_tokens_per_s is None else f"{found.output_tokens_per_s:.0f}",
        "" if found.ttft_p50_s is None else format_duration(found.ttft_p50_s),
        "" if found.tpot_p50_s is None else format_duration(found.tpot_p50_s),
        "" if found.prefill_ratio is None else f"x{found.prefill_ratio:.2f}",
    ]


def _basis(setting: Any, plan: Any) -> str:
    traffic = f"at {setting.traffic.source}" if setting.traffic else "no traffic given, so no speeds"
    missing = "" if plan.base is not None else f"; no memory ledger for {setting.config.engine} here"
    return f"weights and users: ledger; speeds simulated from the datasheet, {traffic}{missing}; ! does not fit"


def _notes(row: PlanRow) -> list[str]:
    slow = [row.support.why] if row.support.answer == "slow" else []
    if row.on_load:
        slow.append(f"{row.support.engine} can also do it while loading: {row.on_load}")
    return slow + [caveat.text for caveat in row.support.caveats]


def _grouped(said: Iterable[tuple[str, str]]) -> list[Text]:
    """One line for each thing said, with all the methods that it was said of."""
    names: dict[str, list[str]] = {}
    for text, method in said:
        names.setdefault(text, []).append(method)
    return [Text(f"{', '.join(dict.fromkeys(methods))}: {text}") for text, methods in names.items()]


def _why_not(support: Support) -> str:
    return f"{support.why}; {_instead(support)}" if support.instead else support.why


def _instead(support: Support) -> str:
    return f"nearest: {', '.join(support.instead)}" if support.instead else "nothing near runs there"


def draw_card(card: QuantCard, out: str, support: Support) -> str:
    share = card.output_bytes / card.source_bytes if card.source_bytes else 0.0
    lines = [
        f"{card.method} with {card.tool}: {format_bytes(card.source_bytes)} -> {format_bytes(card.output_bytes)}"
        f" ({share:.0%}) in {format_duration(card.seconds)}, {format_bytes(card.peak_memory_bytes)} of memory",
        f"at {out}; what was done: quantisation.json",
    ]
    if card.tensors:
        lines.append("tensors: " + ", ".join(f"{count} {name}" for name, count in sorted(card.tensors.items())))
    if card.skipped_modules:
        named = ", ".join(card.skipped_modules[:4]) + (" ..." if len(card.skipped_modules) > 4 else "")
        lines.append(f"left as they were: {len(card.skipped_modules)} modules ({named})")
    lines += list(card.notes)
    if card.calibration is not None and card.calibration.distance is not None:
        lines.append(
            f"calibration text {card.calibration.distance:.2f} bits from the traffic"
            f" (the traffic against itself {card.calibration.distance_noise:.2f})"
        )
    lines.append(f"{support.engine}: {_WORDS[support.answer]}" + (f", {support.kernel}" if support.kernel else ""))
    lines.append("not measured yet: its quality (powerband verify --quality) and its speed")
    return "\n".join(lines)
