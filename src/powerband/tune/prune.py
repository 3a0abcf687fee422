"""What need not be measured: configs that even at their most likely best stay behind the best one measured."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powerband.records.config import EngineConfig
from powerband.tune.space import Pruned

Array = NDArray[np.float64]

SURE = 2.326  # one-sided 99 %


def prune_by_bound(configs: Sequence[EngineConfig], bound: Array, best: float) -> list[Pruned]:
    """Configs whose 99 % upper ``bound`` does not reach ``best``, each with the bound."""
    return [
        Pruned(config=config, reason=f"cannot beat {best:.4g}: at most {reach:.4g} by the prediction's 99 % bound")
        for config, reach in zip(configs, bound.tolist(), strict=True)
        if reach < best
    ]
