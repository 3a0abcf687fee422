"""What a search makes large: the objective, or what it is worth by the cards that a config takes; also in words."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from powerband.records.config import EngineConfig
from powerband.records.rounds import Goal, Objective
from powerband.records.units import percent

Array = NDArray[np.float64]
Appraise = Callable[[EngineConfig, Array], Array]  # what values of the objective are worth in this config
CardsOf = Callable[[EngineConfig], int]

_MORE_THAN_ANY = 4097  # cards; a request may name 4096

UNIT: dict[Objective, str] = {
    "goodput_per_s": "requests/s within the promise",
    "output_tokens_per_s": "output tokens/s",
    "attainment": "of the requests within the promise",
}


def as_it_is(_: EngineConfig, values: Array) -> Array:
    return values


def appraisal(goal: Goal, cards_of: CardsOf, *, attainment: float) -> Appraise:
    """``cost``: the objective for each card, so that the best config has the cheapest tokens whatever a card costs.

    ``cards``, of an objective that is the attainment: one over the cards where the promised ``attainment`` is held;
    where it is not, less than any that holds it, and the less the more it misses.
    """

    def by_cost(config: EngineConfig, values: Array) -> Array:
        each: Array = values / cards_of(config)
        return each

    def by_cards(config: EngineConfig, values: Array) -> Array:
        worth: Array = np.where(values >= attainment, 1 / cards_of(config), values / attainment / _MORE_THAN_ANY)
        return worth

    return {"speed": as_it_is, "cost": by_cost, "cards": by_cards}[goal]


def format_value(value: float, objective: Objective) -> str:
    """Three significant digits with the unit."""
    shown = percent(value, 1) if objective == "attainment" else f"{value:.3g}"
    return f"{shown} {UNIT[objective]}"


def format_gain(value: float, reference: float) -> str:
    """How ``value`` stands to ``reference``, in words."""
    if reference <= 0:
        return "from nothing" if value > 0 else "no change"
    ratio = value / reference
    return f"{ratio:.2g} times" if ratio >= 2 else percent(ratio - 1, 1, sign=True)
