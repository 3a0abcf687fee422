"""The configs that a search may try: the product of the knobs' grids, without what an engine or its memory refuses."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from powerband.records.config import EngineConfig, Knob, Value
from powerband.records.value import Record

MOST_CONFIGS = 4096


class Pruned(Record):
    """A config that is not tried, and why."""

    config: EngineConfig
    reason: str


def _as_it_is(config: EngineConfig) -> EngineConfig:
    return config


def _refuse_nothing(_: EngineConfig) -> str | None:
    return None


@dataclass(frozen=True)
class Space:
    """What may be turned.

    ``fixed`` knobs keep the user's value. ``complete`` sets knobs that follow from others (such as ``n_ctx``);
    ``refuses`` says why a config cannot serve, or None. Knobs that alter the answers are left at their naive value
    unless ``numerics``: nothing may be advised that has not passed the quality gate.
    """

    knobs: tuple[Knob, ...]
    complete: Callable[[EngineConfig], EngineConfig] = _as_it_is
    refuses: Callable[[EngineConfig], str | None] = _refuse_nothing
    fixed: dict[str, Value] = field(default_factory=dict)
    numerics: bool = False
    most: int = MOST_CONFIGS

    def turned(self) -> tuple[Knob, ...]:
        """The knobs that a search turns: with at least one value besides the present, not fixed, not barred."""
        return tuple(
            knob
            for knob in self.knobs
            if knob.grid and knob.name not in self.fixed and (self.numerics or not knob.numerics)
        )

    def size(self, baseline: EngineConfig) -> int:
        """Combinations of all values, before anything is refused."""
        total = 1
        for knob in self.turned():
            total *= len(_values(knob, baseline))
        return total

    def configs(self, baseline: EngineConfig) -> tuple[list[EngineConfig], list[Pruned]]:
        """All configs in a fixed order, and those refused.

        A space of more than ``most`` combinations is thinned: every change of one or two knobs stays, and the rest is
        a sample drawn with a fixed seed.
        """
        seen: set[str] = set()
        kept: list[EngineConfig] = []
        refused: list[Pruned] = []
        default = {knob.name: knob.naive for knob in self.knobs}
        for knobs in self._combinations(baseline):
            # A knob that the baseline leaves to the engine, and that gets the same value, stays unset: no change.
            new = {name: value for name, value in knobs.items() if name in baseline.knobs or value != default[name]}
            config = self.complete(baseline.replace(**new))
            if config.key in seen:
                continue
            seen.add(config.key)
            reason = self.refuses(config)
            if reason is None:
                kept.append(config)
            else:
                refused.append(Pruned(config=config, reason=reason))
        return kept, refused

    def _combinations(self, baseline: EngineConfig) -> list[dict[str, Value]]:
        turned = self.turned()
        values = [_values(knob, baseline) for knob in turned]
        names = [knob.name for knob in turned]
        if self.size(baseline) <= self.most:
            return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]
        near: list[dict[str, Value]] = [{}]
        for count in (1, 2):
            for which in itertools.combinations(range(len(names)), count):
                near += [
                    dict(zip([names[i] for i in which], chosen, strict=True))
                    for chosen in itertools.product(*[values[i] for i in which])
                ]
        draw = random.Random(0)
        far = [
            {name: draw.choice(options) for name, options in zip(names, values, strict=True)} for _ in range(self.most)
        ]
        return [*near, *far][: max(self.most, len(near))]


def _values(knob: Knob, baseline: EngineConfig) -> list[Value]:
    """The grid, with the baseline's own value where the grid lacks it."""
    now = baseline.knobs.get(knob.name, knob.naive)
    return list(knob.grid) if now in knob.grid else [now, *knob.grid]
