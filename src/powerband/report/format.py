"""Numbers and names as people read them; every number of a report is written here."""

import datetime
import math
import re
import unicodedata

from powerband.records import units
from powerband.records.config import EngineConfig, Value
from powerband.records.metrics import Distribution, Metrics
from powerband.records.slo import Slo
from powerband.records.units import format_duration
from powerband.records.value import Interval, Measured, Missing

LABELS = {
    "goodput_per_s": "Goodput, requests/s",
    "goodput_per_s_per_card": "Goodput of a card, requests/s",
    "output_tokens_per_s_per_card": "Output tokens/s of a card",
    "attainment": "SLO attainment",
    "output_tokens_per_s": "Output tokens/s",
    "total_tokens_per_s": "Total tokens/s",
    "request_rate_per_s": "Completed requests/s",
    "ttft_p50_s": "TTFT p50",
    "ttft_p99_s": "TTFT p99",
    "tpot_p50_s": "TPOT p50",
    "tpot_p99_s": "TPOT p99",
    "e2e_p50_s": "E2E p50",
    "e2e_p99_s": "E2E p99",
}
WHOLES = {"window": "the window", "request_time": "request time"}  # what a finding's share is a share of
HIGHER_IS_BETTER = {
    "goodput_per_s",
    "goodput_per_s_per_card",
    "output_tokens_per_s_per_card",
    "attainment",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "request_rate_per_s",
}
_PERCENTILE = re.compile(r"(ttft|tpot|itl|e2e)_(mean|p50|p90|p99)_s")


def clean(text: str) -> str:
    """Text from outside made safe to show: control and direction-changing characters become visible escapes."""
    return "".join(_visible(character) for character in text.replace("\r\n", "\n"))


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return character
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def one_line(text: str, limit: int = 0) -> str:
    """The text on one line, cut to ``limit`` characters where one is given."""
    line = " ".join(clean(text).split())
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


def timestamp(text: str) -> str:
    """An ISO 8601 instant as date and time in UTC; any other text as it is."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return one_line(text, 40)
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if moment.tzinfo else one_line(text, 40)


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant digits, never in powers of ten; whole numbers keep all their digits."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{decimals}f}" if decimals > 0 else f"{value:,.0f}"


def percent(share: float, digits: int = 1) -> str:
    return units.percent(share, digits)


def percents(shares: list[float]) -> list[str]:
    """Shares of one whole, rounded so that what is printed sums to what the shares sum to (largest remainder)."""
    tenths = [share * 1000 for share in shares]
    floors = [math.floor(value) for value in tenths]
    left = round(sum(tenths)) - sum(floors)
    by_remainder = sorted(range(len(shares)), key=lambda i: floors[i] - tenths[i])
    for index in by_remainder[:left]:
        floors[index] += 1
    return [f"{value / 10:.1f} %" for value in floors]


def ratio_decimals(interval: Interval) -> int:
    """Decimals at which the interval's width still shows: no digit that the noise makes meaningless."""
    half = abs(interval.high - interval.low) / 2
    if not math.isfinite(half) or half == 0:
        return 2
    return min(max(-math.floor(math.log10(half)), 0), 3)


def ratio(value: float, interval: Interval | None = None) -> str:
    if interval is None:
        return f"{significant(value)}×"
    return f"{value:,.{ratio_decimals(interval)}f}×"


def ratio_interval(interval: Interval) -> str:
    decimals = ratio_decimals(interval)
    return f"[{interval.low:,.{decimals}f}, {interval.high:,.{decimals}f}]"


def number_interval(interval: Interval) -> str:
    return f"[{significant(interval.low)}, {significant(interval.high)}]"


def is_duration(name: str) -> bool:
    return name.endswith("_s") and not name.endswith("_per_s")


def row_label(name: str, *values: float | None) -> str:
    """The metric's name with the unit that ``row_value`` writes it in."""
    label = LABELS.get(name, one_line(name.replace("_", " "), 40))
    return f"{label}, {_duration_unit(values)}" if is_duration(name) else label


def row_value(name: str, value: float, *row: float | None) -> str:
    """The value in the unit of its row, so that the numbers beside each other compare by eye."""
    if name == "attainment":
        return percent(value)
    if is_duration(name):
        return significant(value * (1000 if _duration_unit(row) == "ms" else 1))
    return significant(value)


def _duration_unit(values: tuple[float | None, ...]) -> str:
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    return "s" if sizes and min(sizes) >= 1 else "ms"


def value_of(metrics: Metrics, name: str) -> Measured:
    """A metric by its flat name (``ttft_p99_s`` is ``metrics.ttft_s.p99``); Missing says why it is not there."""
    if match := _PERCENTILE.fullmatch(name):
        distribution: Distribution | Missing = getattr(metrics, f"{match[1]}_s")
        return distribution if isinstance(distribution, Missing) else float(getattr(distribution, match[2]))
    value = getattr(metrics, name, None)
    if value is None:
        known = name in Metrics.__struct_fields__
        return Missing(missing="no SLO was set" if known else f"the run has no metric {name}")
    return float(value)


def objective_value(name: str, value: float) -> str:
    """A value of the objective with its unit."""
    if name == "attainment":
        return percent(value)
    unit = "requests/s" if name.startswith("goodput") else "output tokens/s"
    return f"{significant(value)} {unit}{' of a card' if name.endswith('_per_card') else ''}"


def slo_text(slo: Slo | None) -> str:
    if slo is None:
        return "no SLO was set"
    limits = [("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s)]
    parts = [f"{name} ≤ {format_duration(limit)}" for name, limit in limits if limit is not None]
    return f"{', '.join(parts)} (target attainment {slo.attainment * 100:g} %)"


def knob_text(value: Value | None) -> str:
    if value is None:
        return "engine's default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else clean(str(value))


def config_text(config: EngineConfig, base: EngineConfig | None = None) -> str:
    """The knobs that were set, or only those that differ from ``base``."""
    knobs = config.knobs if base is None else config.changes_from(base)
    dropped = [] if base is None else [name for name in base.knobs if name not in config.knobs]
    parts = [f"{clean(name)}={knob_text(value)}" for name, value in knobs.items()]
    parts += [f"{clean(name)} left to the engine" for name in dropped]
    if base is not None and config.engine != base.engine:
        parts.insert(0, f"engine {clean(config.engine)}")
    return ", ".join(parts) or ("engine defaults" if base is None else "as the baseline")


def words(name: str) -> str:
    """A closed list's name in plain words."""
    return clean(name.replace("_", " "))
