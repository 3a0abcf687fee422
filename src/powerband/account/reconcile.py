"""Predicted against reported memory, line by line, and the residual that the next prediction takes into account."""

from powerband.records.memory import EngineReport, MemoryLedger, Residual
from powerband.records.units import MIB
from powerband.records.value import Record

# Below this a ratio says nothing: 20 MiB of graphs predicted as 40 is no factor of two.
_SMALLEST_RATIO_BYTES = 64 * MIB
_NAMES = {
    "weights": "weights_bytes",
    "activation": "activation_bytes",
    "non_torch": "non_torch_bytes",
    "cuda_graphs": "cuda_graphs_bytes",
    "kv_cache": "kv_cache_bytes",
    "kv_tokens": "kv_tokens",
}


class ReconciledLine(Record):
    """One figure, predicted and reported; bytes, except for ``kv_tokens``."""

    name: str
    predicted: float
    reported: float

    @property
    def difference(self) -> float:
        return self.predicted - self.reported

    @property
    def share(self) -> float | None:
        return self.difference / self.reported if self.reported else None


class Reconciliation(Record):
    """``lines`` that both sides name; ``unexplained_bytes`` is the part of the cache's error the other lines do not
    explain (None where the engine does not report them all); ``residual`` is what to remember."""

    lines: tuple[ReconciledLine, ...]
    residual: Residual
    unexplained_bytes: float | None
    silent: tuple[str, ...]  # figures the engine did not report


def reconcile(
    ledger: MemoryLedger, report: EngineReport, *, engine: str, version: str, family: str, source: str
) -> Reconciliation:
    """Compare ``ledger`` with what the engine reported when it started with the same settings."""
    lines, silent = [], []
    for name, field in _NAMES.items():
        predicted, reported = getattr(ledger.reported, field), getattr(report, field)
        if predicted is None or reported is None:
            silent.append(name)
        else:
            lines.append(ReconciledLine(name=name, predicted=float(predicted), reported=float(reported)))
    by_name = {line.name: line for line in lines}
    return Reconciliation(
        lines=tuple(lines),
        residual=Residual(
            device=ledger.device,
            engine=engine,
            engine_version=version,
            family=family,
            weights_bytes=_offset(by_name, "weights"),
            non_torch_bytes=_offset(by_name, "non_torch"),
            activation_ratio=_ratio(by_name, "activation"),
            cuda_graphs_ratio=_ratio(by_name, "cuda_graphs"),
            source=source,
        ),
        unexplained_bytes=_unexplained(by_name),
        silent=tuple(silent),
    )


def combined(before: Residual | None, found: Residual) -> Residual:
    """``found`` was measured against a prediction that already held ``before``: the two add up."""
    if before is None:
        return found
    return Residual(
        device=found.device,
        engine=found.engine,
        engine_version=found.engine_version,
        family=found.family,
        weights_bytes=before.weights_bytes + found.weights_bytes,
        non_torch_bytes=before.non_torch_bytes + found.non_torch_bytes,
        activation_ratio=before.activation_ratio * found.activation_ratio,
        cuda_graphs_ratio=before.cuda_graphs_ratio * found.cuda_graphs_ratio,
        source=found.source,
    )


def _offset(lines: dict[str, ReconciledLine], name: str) -> float:
    return -lines[name].difference if name in lines else 0.0


def _ratio(lines: dict[str, ReconciledLine], name: str) -> float:
    line = lines.get(name)
    if line is None or min(line.predicted, line.reported) < _SMALLEST_RATIO_BYTES:
        return 1.0
    return line.reported / line.predicted


def _unexplained(lines: dict[str, ReconciledLine]) -> float | None:
    needed = ("weights", "activation", "non_torch", "kv_cache")
    if any(name not in lines for name in needed):
        return None
    others = sum(lines[name].difference for name in needed[:3])
    return lines["kv_cache"].difference + others
