"""The account on one screen: the ledger, what it holds, what would help, and the other tables of the command."""

from collections.abc import Sequence

from powerband.account.compare import Fit
from powerband.account.reconcile import Reconciliation
from powerband.records.memory import MemoryLedger
from powerband.records.model import ModelSpec
from powerband.records.units import GIB, format_bytes, percent
from powerband.report.width import wrap

_BAR = 24
_MOST_REMEDIES = 8
_HANG = 6  # blanks before what a line has no room for


def draw_ledger(ledger: MemoryLedger, model: ModelSpec, engine: str, asked: int | None = None, *, width: int) -> str:
    """Lines with their share of the device, capacity, remedies and assumptions; ``asked``: the traffic's users."""
    ranks = f" x {ledger.ranks}" if ledger.ranks > 1 else ""
    version = f" {ledger.engine_version}" if ledger.engine_version else ""
    answer = "fits" if ledger.fits else f"does not fit: {ledger.shortage}"
    rows = [
        f"{ledger.model} ({model.parameters / 1e9:.3g} B parameters, {model.weight_dtype}) "
        f"on {ledger.device}{ranks}, {engine}{version}",
        answer,
        "",
    ]
    for line in ledger.lines:
        share = line.bytes / ledger.memory_bytes
        bar = "#" * max(0, min(_BAR, round(share * _BAR)))
        spread = (line.interval_bytes.high - line.interval_bytes.low) / 2
        doubt = f"+-{spread / GIB:.2f}" if spread >= GIB / 200 else ""
        rows.append(
            f"  {line.name:<12}{line.bytes / GIB:>8.2f} GiB {doubt:<8}{bar:<{_BAR}} "
            f"{percent(share, 1):>7}  {line.basis}"
        )
    rows.append(f"  {'device':<12}{ledger.memory_bytes / GIB:>8.2f} GiB {'each' if ledger.ranks > 1 else ''}")
    rows += ["", *_capacity_rows(ledger, asked)]
    rows += _remedy_rows(ledger)
    rows += [f"  assumed: {note}" for note in ledger.assumed[:4]]
    return _lines(rows, width)


def _capacity_rows(ledger: MemoryLedger, asked: int | None) -> list[str]:
    cap = ledger.capacity
    longest = ledger.reported.max_model_len
    whole = f": {cap.max_concurrency:.1f} sequences of {longest:,.0f} tokens" if longest else ""
    rows = [f"  cache   {cap.kv_tokens:,} tokens at {format_bytes(cap.kv_bytes_per_token)} each{whole}"]
    if cap.users_at_traffic is not None:
        interval = cap.users_interval
        between = f" ({interval.low:.0f} to {interval.high:.0f})" if interval else ""
        users = f"{cap.users_at_traffic:.0f}{between}"
        rows.append(f"  users   {users}, until the cache runs out 1 moment in 100 ({cap.traffic})")
        rows.append(f"          {cap.users_at_double_length:.0f} where every length doubles")
        if asked is not None:
            rows.append(
                f"          the traffic's own {asked}: {'fit' if asked <= cap.users_at_traffic else 'do not fit'}"
            )
        if cap.too_long:
            rows.append(f"  length  {cap.too_long:,} of the traffic's requests are longer than one sequence may become")
    if cap.safe_prompt_tokens:
        rows.append(f"  prompt  at most {cap.safe_prompt_tokens:,} tokens alone beside a mean answer")
    return rows


def _remedy_rows(ledger: MemoryLedger) -> list[str]:
    if not ledger.remedies:
        return []
    rows = ["", "  what would help, cheapest first"]
    for remedy in ledger.remedies[:_MOST_REMEDIES]:
        rows.append(f"  - {remedy.change:<36} {remedy.predicted}")
    left = len(ledger.remedies) - _MOST_REMEDIES
    return [*rows, *([f"    and {left} more in --json"] if left > 0 else []), ""]


def draw_fits(fits: Sequence[Fit], model: str, engine: str, *, traffic: str, width: int) -> str:
    """Cards in order of their total memory."""
    if not fits:
        return f"{model} fits on no card of the catalogue, up to 8 of each, with {engine}\n"
    what = "users" if traffic else "full sequences"
    priced = any(fit.price_per_hour is not None for fit in fits)
    rows = [f"{model} with {engine}: the fewest cards of each kind that hold it, smallest first", ""]
    if traffic:
        rows.insert(1, f"users: until the cache runs out in 1 moment of 100, {traffic}")
    rows.append(
        f"  {'cards':<24}{'memory':>10}{'weights':>12}{'cache tokens':>15}{what:>16}"
        + (f"{'per hour':>12}" if priced else "")
    )
    for fit in fits:
        name = f"{fit.count} x {fit.device}" if fit.count > 1 else fit.device
        memory, weights = f"{fit.count * fit.memory_bytes / GIB:.0f} GiB", f"{fit.weights_bytes / GIB:.1f} GiB"
        price = f"{fit.price_per_hour:>12.2f}" if fit.price_per_hour is not None else ""
        rows.append(f"  {name:<24}{memory:>10}{weights:>12}{fit.kv_tokens:>15,}{fit.users:>16.0f}{price}")
    return _lines(rows, width)


def _lines(rows: Sequence[str], width: int) -> str:
    return "\n".join(wrap(row, width, _HANG) for row in rows) + "\n"


def draw_reconciliation(found: Reconciliation, after: MemoryLedger, saved: str) -> str:
    """Predicted against reported, the residual as its own line, and the cache once more with it applied."""
    rows = [f"  {'line':<14}{'predicted':>14}{'reported':>14}{'difference':>14}{'share':>9}"]
    for line in found.lines:
        share = percent(line.share, 2, sign=True) if line.share is not None else ""
        if line.name == "kv_tokens":
            figures = f"{line.predicted:>14,.0f}{line.reported:>14,.0f}{line.difference:>+14,.0f}"
        else:
            figures = (
                f"{line.predicted / GIB:>10.3f} GiB{line.reported / GIB:>10.3f} GiB{line.difference / GIB:>+10.3f} GiB"
            )
        rows.append(f"  {line.name:<14}{figures}{share:>9}")
    if found.unexplained_bytes is not None:
        rows.append(f"  {'unexplained':<14}{'':>28}{found.unexplained_bytes / GIB:>+10.3f} GiB")
    if found.silent:
        rows.append(f"  not reported: {', '.join(found.silent)}")
    reported = next((line.reported for line in found.lines if line.name == "kv_tokens"), None)
    now = after.reported.kv_tokens
    if reported and now is not None:
        rows.append(
            f"  with this residual the prediction is {now:,.0f} tokens, {percent(now / reported - 1, 2, sign=True)} off"
        )
    residual = found.residual
    version = residual.engine_version or "(version not named)"
    rows.append(f"  kept in {saved} for {residual.device}, {residual.engine} {version}, {residual.family} models")
    return "\n".join(rows) + "\n"
