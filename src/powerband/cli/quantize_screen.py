"""How a plan and a card look on a terminal."""

from collections.abc import Iterable
from typing import Any

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from powerband.cli.options import terminal
from powerband.records.quantisation import CacheRow, Forecast, PlanRow, QuantCard, Support
from powerband.records.units import format_bytes, format_duration, percent
from powerband.report.text import draw

_WORDS = {"runs": "runs", "slow": "runs, slowly", "unknown": "not known", "refused": "cannot"}
_SHORT = {"runs": "yes", "slow": "slowly", "unknown": "not known", "refused": "no"}
_COLUMNS = ("method", "format", "runs", "weights", "users", "out\ntok/s", "TTFT", "TPOT", "prefill", "risk")
_WORDED = ("method", "format", "runs", "risk")  # set left
_LEAST_NEEDED = ("prefill", "format", "risk")


def draw_plan(setting: Any, plan: Any) -> str:
    possible = [row for row in plan.rows if row.support.possible]
    head = [Text(_headline(setting, plan, possible), style="bold")]
    if plan.stored is not None and plan.stored.format != "none" and not plan.stored.possible:
        head.append(Text(f"as it is ({plan.stored.format}): {plan.stored.why}; {_instead(plan.stored)}"))
    view = terminal()
    table, left_out = _table(plan, possible, view["width"])
    notes = _grouped((text, row.method) for row in possible for text in _notes(row))
    cannot = _grouped((_why_not(row.support), row.method) for row in plan.rows if not row.support.possible)
    parts: list[Any] = [*head, table, Text(_basis(setting, plan, left_out), style="dim")]
    parts += [Text("cache", style="bold"), *map(_cache_line, plan.cache)] if plan.cache else []
    parts += [Text("to know", style="bold"), *notes] if notes else []
    parts += [Text("cannot", style="bold"), *cannot] if cannot else []
    parts.append(Text(f"table of {plan.table_version}; quality is measured, not planned: powerband verify --quality"))
    return draw(parts, **view)


def _table(plan: Any, possible: list[PlanRow], width: int) -> tuple[Table, list[str]]:
    """The table, and the columns that it has no room for, the least needed first; a cell is never cut."""
    rows = [["as it is", "16 bits", "", *_figures(plan.base), ""]] if plan.base is not None else []
    rows += [
        [row.method, row.format, _SHORT[row.support.answer], *_figures(row.forecast), row.risk] for row in possible
    ]
    filled = [index for index in range(len(_COLUMNS)) if any(row[index] for row in rows)]
    left_out: list[str] = []
    while (gap := _gap(filled, rows, width)) == 0 and len(left_out) < len(_LEAST_NEEDED):
        left_out.append(_LEAST_NEEDED[len(left_out)])
        filled = [index for index in filled if _COLUMNS[index] not in left_out]
    table = Table(box=None, padding=(0, max(gap, 1), 0, 0), header_style="dim", pad_edge=False)
    for index in filled:
        justify: JustifyMethod = "left" if _COLUMNS[index] in _WORDED else "right"
        table.add_column(_COLUMNS[index], justify=justify, vertical="bottom", overflow="fold")
    for row in rows:
        table.add_row(*(row[index] for index in filled))
    return table, left_out


def _gap(filled: list[int], rows: list[list[str]], width: int) -> int:
    """Blanks between columns: 2, or 1 where that is too wide; 0 where there is no room for 1 either."""
    words = [[*_COLUMNS[index].split("\n"), *(row[index] for row in rows)] for index in filled]
    cells = sum(max(map(len, column)) for column in words)
    return next((gap for gap in (2, 1) if cells + gap * (len(words) - 1) <= width), 0)


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
    total = len(plan.rows)
    tight = [row for row in possible if row.forecast is not None and not row.forecast.fits]
    good = [row for row in possible if row not in tight]
    too_big = f"; {len(tight)} {'more ' if good else ''}{_run_but_do_not_fit(len(tight))}" if tight else ""
    if not good:
        return f"None of {total} fits with {where}{too_big}."
    best, one, saved = good[0], len(good) == 1, ""
    fit, unknown = (" and fits", "it fits") if one else (" and fit", "they fit")
    if best.forecast is None:
        fit, where = "", f"{where}, whether {unknown} is not known here"
    elif plan.base is not None:
        saved = f": weights {format_bytes(plan.base.weight_bytes)} -> {format_bytes(best.forecast.weight_bytes)}"
    run = f"{len(good)} of {total} {'runs' if one else 'run'}{fit} with {where}"
    return f"{run}{too_big}; least risk first, {best.method}{saved}."


def _run_but_do_not_fit(count: int) -> str:
    return "runs but does not fit (!)" if count == 1 else "run but do not fit (!)"


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


def _basis(setting: Any, plan: Any, left_out: list[str]) -> str:
    traffic = f"at {setting.traffic.source}" if setting.traffic else "no traffic given, so no speeds"
    missing = "" if plan.base is not None else f"; no memory ledger for {setting.config.engine} here"
    cut = f"; no room here for {', '.join(left_out)} (--json has all)" if left_out else ""
    return f"weights and users: ledger; speeds simulated from the datasheet, {traffic}{missing}; ! does not fit{cut}"


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
        f" ({percent(share)}) in {format_duration(card.seconds)}, {format_bytes(card.peak_memory_bytes)} of memory",
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
