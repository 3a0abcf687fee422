"""What the predictor does not know: a factor on the step time for each knob value, learnt from how trials missed."""

import numpy as np
from numpy.typing import NDArray

from powerband.records.finding import Cause

Array = NDArray[np.float64]

NOISE = 0.03  # spread of one trial's step time about its own mean (log); the verify stage measures the real one
COMMON = 0.10  # spread of a miss that all configs share
# Spread of a value's effect before any trial: where the predictor has an opinion on the knob; where it has none and
# the knob addresses waiting or memory; where it has none and the knob may change the speed.
KNOWN, QUIET, UNKNOWN = 0.04, 0.04, 0.12
SPEED_CAUSES: frozenset[Cause] = frozenset(
    {
        "launch_bound",
        "memory_bandwidth_bound",
        "compute_bound",
        "communication_bound",
        "tokenizer_bound",
        "scheduler_bound",
        "detokenize_bound",
        "quantisation_overhead",
        "kernel_choice",
    }
)
INTERPLAY = 0.03  # what no sum of single effects explains


class Effects:
    """Bayesian linear regression of log(measured / predicted step time) on columns of features.

    ``spread``: of each column's effect before any trial; the effects are then 0 on average and independent.
    """

    def __init__(self, spread: Array) -> None:
        self._mean: Array = np.zeros(len(spread))
        self._covariance: Array = np.diag(spread**2)

    def learn(self, features: Array, miss: Array) -> None:
        """Take in trials: ``features`` (trials, columns), by how much each missed its prediction (log)."""
        if not len(miss):
            return
        x, s = features, self._covariance
        gain = np.linalg.solve(x @ s @ x.T + NOISE**2 * np.eye(len(x)), x @ s).T
        self._mean = np.asarray(self._mean + gain @ (miss - x @ self._mean), dtype=np.float64)
        self._covariance = np.asarray(s - gain @ x @ s, dtype=np.float64)

    def expect(self, features: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the log ratio for each row of ``features``."""
        mean: Array = features @ self._mean
        variance = np.einsum("ij,jk,ik->i", features, self._covariance, features)
        spread: Array = np.sqrt(np.maximum(variance, 0.0))
        return mean, spread
