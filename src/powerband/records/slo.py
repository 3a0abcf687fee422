"""The latency promise: thresholds, and the share of sent requests that must meet them all."""

from powerband.records import units
from powerband.records.errors import RequestError, unknown_name
from powerband.records.value import Record

_FIELDS = ("ttft", "tpot", "e2e", "attainment", "percentile")


class Slo(Record):
    """A request is good when it meets every threshold that is set; a missing token time misses it."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.95

    def met_by(self, *, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> bool:
        """Whether one completed request is good; ``tpot_s`` is None for a one-token answer, which cannot miss it."""
        if self.ttft_s is not None and (ttft_s is None or ttft_s > self.ttft_s):
            return False
        if self.e2e_s is not None and (e2e_s is None or e2e_s > self.e2e_s):
            return False
        return not (self.tpot_s is not None and tpot_s is not None and tpot_s > self.tpot_s)


def parse_slo(text: str) -> Slo:
    """Read ``ttft=500ms,tpot=50ms,attainment=0.95``; ``percentile=p99`` is another way to write attainment=0.99."""
    values: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if not equals:
            raise RequestError(
                f"cannot read --slo part {part!r}", hint="write name=value, such as ttft=500ms,tpot=50ms"
            )
        if name not in _FIELDS:
            raise unknown_name("slo field", name, _FIELDS)
        field = f"{name}_s" if name in ("ttft", "tpot", "e2e") else "attainment"
        if field in values:
            raise RequestError(f"--slo {text!r} sets {field.removesuffix('_s')} twice", hint="name each part once")
        values[field] = _share(name, value) if field == "attainment" else units.parse_duration(value)
    if not values.keys() & {"ttft_s", "tpot_s", "e2e_s"}:
        raise RequestError(f"--slo {text!r} sets no threshold", hint="set at least one of ttft=, tpot=, e2e=")
    return Slo(**values)


def _share(name: str, text: str) -> float:
    raw = text.strip().lower().removeprefix("p") if name == "percentile" else text.strip()
    try:
        value = float(raw) / (100 if name == "percentile" else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RequestError(f"cannot read {name}={text!r}", hint="write attainment=0.95 or percentile=p95")
    return value
