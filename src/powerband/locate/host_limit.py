"""Whether the engine's processes use up all the cores they may run on while its card has time left."""

from dataclasses import dataclass

import numpy as np

from powerband.locate.view import View
from powerband.records.value import known

# Of the cores allowed: one process of several waits for another now and then.
_FULL = 0.85
# A card that works this much of the time is the limit itself, however busy the host is.
_CARD_BUSY = 0.9
_MIN_READINGS = 3


@dataclass(frozen=True, slots=True)
class HostLimit:
    """Medians over the readings with requests in flight."""

    used_cores: float
    allowed_cores: float
    cores: int

    @property
    def seen(self) -> str:
        of = f"of the {self.allowed_cores:.0f} they may run on (the machine has {self.cores})"
        return f"the engine's processes use {self.used_cores:.2f} cores {of}"


def read_host_limit(view: View) -> HostLimit | None:
    """The cores used and allowed, where the engine feeds a card and uses its cores up; else None.

    An engine that computes on the CPU uses all its cores in any case: that is no limit of the host's work.
    """
    on_card = view.use is not None or (view.device is not None and view.device.kind == "gpu")
    if not on_card or (view.use is not None and (view.use.busy_ratio or 0.0) >= _CARD_BUSY):
        return None
    rows = []
    for sample in view.run.host_samples:
        used, allowed = known(sample.engine_cores), known(sample.engine_allowed_cores)
        middle = np.array([sample.t_ns - round(sample.interval_s * 5e8)], dtype=np.int64)
        in_flight = view.activity.at(middle, view.activity.decoding + view.activity.waiting)[0] > 0
        if used is not None and allowed and in_flight:
            rows.append((used, allowed, sample.cores))
    if len(rows) < _MIN_READINGS:
        return None
    used_cores, allowed_cores, cores = (float(np.median([row[k] for row in rows])) for k in range(3))
    if used_cores < _FULL * allowed_cores:
        return None
    return HostLimit(used_cores, allowed_cores, int(cores))
