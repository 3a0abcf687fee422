"""A predicted number of bytes: the value, its bounds, its basis and the arithmetic in words."""

from powerband.records.memory import LineName, MemoryLine
from powerband.records.value import Basis, Interval, Record

# How far a reconciled figure may still be off: starts of the same settings repeat to within this.
_RECONCILED_SHARE = 0.02


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

    def scaled(self, ratio: float, source: str) -> "Estimate":
        """Corrected by what an earlier start showed, with the narrower bounds that this allows."""
        return _reconciled(self.bytes * ratio, self, source) if ratio != 1.0 else self

    def shifted(self, offset: float, source: str) -> "Estimate":
        return _reconciled(self.bytes + offset, self, source) if offset else self

    def share(self, part: float) -> "Estimate":
        """``part`` of it, with the same relative bounds."""
        return Estimate(
            bytes=round(self.bytes * part),
            low=round(self.low * part),
            high=round(self.high * part),
            basis=self.basis,
            why=self.why,
        )

    def plus(self, count: int, why: str) -> "Estimate":
        """With ``count`` bytes more, which add nothing to the doubt."""
        return Estimate(
            bytes=self.bytes + count,
            low=self.low + count,
            high=self.high + count,
            basis=self.basis,
            why=f"{self.why}; {why}" if count else self.why,
        )


def _reconciled(count: float, before: Estimate, source: str) -> Estimate:
    why = f"{before.why}, as reconciled with {source or 'an earlier start'}"
    return about(max(count, 0), why, share=_RECONCILED_SHARE, basis=before.basis)


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
