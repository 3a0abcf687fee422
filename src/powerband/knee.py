"""What rate to offer in a search: one at which the naive settings break the promise, and not by much."""

from powerband.case import Case, within_window
from powerband.evaluate import Trials
from powerband.records.errors import RequestError
from powerband.records.run import Run, Trial

STEP = 1.25  # from one rate tried to the next
# The promise counts as broken where fewer of the requests met it: a few slow ones in a short run decide nothing, and
# where more are missed there is something to be gained.
ENOUGH = 0.9
_MOST = 6


class Knee:
    """The rates tried, up or down from the traffic's own, until one misses the promise and the next lower one holds."""

    def __init__(self, first_per_s: float) -> None:
        self._first = self._next = first_per_s
        self._held: float | None = None
        self._missed: float | None = None
        self.tried = 0

    def ask(self) -> float | None:
        """The next rate, or None when both sides are known or enough was tried."""
        done = self._held is not None and self._missed is not None
        return None if done or self.tried >= _MOST else self._next

    def tell(self, rate_per_s: float, *, holds: bool) -> None:
        self.tried += 1
        if holds:
            self._held, self._next = rate_per_s, rate_per_s * STEP
        else:
            self._missed, self._next = rate_per_s, rate_per_s / STEP

    @property
    def offered_per_s(self) -> float:
        """What to offer from here on: the lowest rate that missed, else the highest tried."""
        return self._missed or self._held or self._first


def scaled_to_knee(case: Case, trials: Trials) -> tuple[Case, list[Run], Trial | None]:
    """The case at the rate found, the runs that found it, and the trial that cannot be used, if the first was one.

    A later one that cannot be used ends the search: what is known by then is taken.

    Raises RequestError without an SLO or without arrivals.
    """
    rate = case.workload.request_rate_per_s
    if case.slo is None or rate is None:
        raise RequestError(
            "--scale-rate knee needs an SLO to miss and arrivals to scale", hint="set --slo, and arrivals in --traffic"
        )
    knee, runs = Knee(rate), list[Run]()
    while (offered := knee.ask()) is not None:
        asked = within_window(case, offered / rate)
        trial, run = trials.run(f"knee-{knee.tried + 1}", case.naive, asked.workload, "calibrate", cut_s=asked.cut_s)
        if run is None or trial.measured is None or trial.status != "done":
            if not runs:
                return case, runs, trial
            break
        runs.append(run)
        knee.tell(offered, holds=(trial.measured.attainment or 0.0) >= min(ENOUGH, case.slo.attainment))
    return within_window(case, knee.offered_per_s / rate), runs, None
