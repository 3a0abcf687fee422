"""How the cards were used while requests were in flight, as their driver says: the first cut of a diagnosis."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Activity
from powerband.records.sample import DeviceSample
from powerband.records.units import percent
from powerband.records.value import Measured, Missing, known

# A card that works less than this share of what the busiest does is not the engine's.
_TAKES_PART = 0.2
_MIN_READINGS = 3
# The driver counts a card as busy while any kernel runs: below this the host, or launching, is the limit.
LAUNCHING = 0.5
BUSY = 0.8
# Requests in flight for this much of the window: then the driver's readings are of steps, not of idle time.
STEADY = 0.8
# Share of time in which device memory moves, from which on it can be what a busy card waits for.
MEMORY_BUSY = 0.4
# Named in the notes from this share of the readings on.
_OFTEN = 0.1


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Means over the readings taken while requests were in flight, over the cards that took part; None: not given."""

    name: str
    cards: int
    readings: int
    busy_ratio: float | None
    memory_busy_ratio: float | None
    power_w: float | None
    power_limit_w: float | None
    clock_ratio: float | None  # of the highest clock of the multiprocessors
    pcie_bytes_per_s: float | None
    throttle: tuple[tuple[str, float], ...]  # why, and in what share of the readings

    @property
    def seen(self) -> str:
        """One line: use, memory, power, clocks, and why clocks are low."""
        words = [f"{self.cards} x {self.name}: kernels ran {_percent(self.busy_ratio)} of the time in use"]
        words.append(f"memory moved {_percent(self.memory_busy_ratio)}")
        if self.power_w is not None and self.power_limit_w:
            words.append(f"{self.power_w:.0f} of {self.power_limit_w:.0f} W")
        if self.clock_ratio is not None:
            words.append(f"clocks at {percent(self.clock_ratio)} of the highest")
        if self.pcie_bytes_per_s is not None:
            words.append(f"{self.pcie_bytes_per_s / 1e9:.2f} GB/s over PCIe")
        held = [f"{why} in {percent(share)} of the readings" for why, share in self.throttle if share >= _OFTEN]
        return ", ".join(words) + (f"; clocks held back: {', '.join(held)}" if held else "")


def read_device_use(samples: Sequence[DeviceSample], activity: Activity | None = None) -> DeviceUse | None:
    """The use of the cards in a run; ``activity`` limits it to instants with requests in flight. None: too few."""
    chosen = list(samples)
    if activity is not None and samples:
        times = np.array([sample.t_ns for sample in samples], dtype=np.int64)
        in_flight = activity.at(times, activity.decoding + activity.waiting) > 0
        chosen = [sample for sample, there in zip(samples, in_flight.tolist(), strict=True) if there]
    by_card: dict[int, list[DeviceSample]] = {}
    for sample in chosen:
        by_card.setdefault(sample.index, []).append(sample)
    busy = {index: _mean(rows, lambda s: s.busy_ratio) or 0.0 for index, rows in by_card.items()}
    most = max(busy.values(), default=0.0)
    rows = [s for index, of_card in by_card.items() if busy[index] >= _TAKES_PART * most for s in of_card]
    if len(rows) < _MIN_READINGS:
        return None
    clock, highest = _mean(rows, lambda s: s.sm_clock_hz), _mean(rows, lambda s: s.max_sm_clock_hz)
    received, sent = _mean(rows, lambda s: s.pcie_rx_bytes_per_s), _mean(rows, lambda s: s.pcie_tx_bytes_per_s)
    reasons = Counter(why for row in rows if not isinstance(row.throttle, Missing) for why in row.throttle)
    return DeviceUse(
        name=rows[0].name,
        cards=len({row.index for row in rows}),
        readings=len(rows),
        busy_ratio=_mean(rows, lambda s: s.busy_ratio),
        memory_busy_ratio=_mean(rows, lambda s: s.memory_busy_ratio),
        power_w=_mean(rows, lambda s: s.power_w),
        power_limit_w=_mean(rows, lambda s: s.power_limit_w),
        clock_ratio=clock / highest if clock is not None and highest else None,
        pcie_bytes_per_s=None if received is None or sent is None else received + sent,
        throttle=tuple((why, count / len(rows)) for why, count in reasons.most_common()),
    )


def _mean(rows: Sequence[DeviceSample], read: Callable[[DeviceSample], Measured]) -> float | None:
    values = [value for value in (known(read(row)) for row in rows) if value is not None]
    return sum(values) / len(values) if values else None


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else percent(share)
