"""A predicted number of bytes: the value, its bounds, its basis and the arithmetic in words."""

from powerband.records.memory import LineName, MemoryLine
from powerband.records.value import Basis, Interval, Record


class Estimate(Record):
    """``low`` to ``high`` should hold the truth in nine of ten cases."""

    bytes: int
    low: int
    high: int
    basis: Basis
    why: str

    def line(self, name: LineName) -> MemoryLine:
        interval = Interval(low=float(self.low), high=float(self.high))
        return MemoryLine(name=name, bytes=self.bytes, interval_bytes=interval, basis=self.basis, why=self.why)


def exact(count: float, why: str, basis: Basis = "computed") -> Estimate:
    whole = round(count)
    return Estimate(bytes=whole, low=whole, high=whole, basis=basis, why=why)


def about(count: float, why: str, *, share: float = 0.0, floor: float = 0.0, basis: Basis = "computed") -> Estimate:
    """``count`` give or take ``share`` of itself, or ``floor`` bytes where that is more."""
    spread = max(abs(count) * share, floor)
    return Estimate(
        bytes=round(count), low=round(max(count - spread, 0)), high=round(count + spread), basis=basis, why=why
    )


def nothing(why: str) -> Estimate:
    return exact(0, why)
