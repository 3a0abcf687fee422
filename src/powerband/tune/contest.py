"""Several engines in one session: each has its own space and search, and the next trial goes where it pays most."""

from collections.abc import Callable

from powerband.records.config import EngineConfig
from powerband.records.run import Trial
from powerband.tune.outlook import Predict
from powerband.tune.search import Proposal, Search


class Contest:
    """Asks every search for what it expects to gain over the best of all, and takes the most for an engine second.

    ``searches`` by engine, the one whose baseline counts first. They share a budget: what one spends, the others lose.
    """

    def __init__(self, searches: dict[str, Search]) -> None:
        self._searches = searches
        self._first = next(iter(searches))
        self.stopped_because = ""

    @property
    def best(self) -> Trial:
        """The measured config that is worth most; of equals the one of the engine named first."""
        return self._leader.best

    @property
    def _leader(self) -> Search:
        return max(self._searches.values(), key=lambda search: search.best_value)

    def ask(self) -> Proposal | None:
        """The next config to measure, or None with ``stopped_because`` set."""
        asked = {name: search.ask(self._best_beside(search)) for name, search in self._searches.items()}
        found = [proposal for proposal in asked.values() if proposal is not None]
        if found:
            return max(found, key=lambda proposal: proposal.gain_per_s)
        reasons = {name: self._searches[name].stopped_because for name in asked}
        named = (f"{name}: {reason}" for name, reason in reasons.items())
        self.stopped_because = "; ".join(named) if len(reasons) > 1 else reasons[self._first]
        return None

    def _best_beside(self, search: Search) -> float:
        return max((other.best_value for other in self._searches.values() if other is not search), default=0.0)

    def tell(self, trial: Trial, predict: Predict | None = None) -> None:
        """Add a finished trial to its engine's search."""
        self._searches[trial.config.engine].tell(trial, predict)
        for name, search in self._searches.items():
            if name != trial.config.engine:
                search.charge(trial.engine_seconds)

    def charge(self, seconds: float) -> None:
        """Take engine time that went into something other than trials off the budget."""
        for search in self._searches.values():
            search.charge(seconds)

    def bar_best(self, barred: Callable[[EngineConfig], bool]) -> str | None:
        """Take the best and its like out for good; gives the engine that goes where that is another one's baseline."""
        name = self.best.config.engine
        search = self._searches[name]
        before = search.best
        search.bar(barred)
        if search.best.n != before.n or name == self._first:
            return None
        del self._searches[name]
        return name
