"""The memory ledger: named lines that sum to the device's memory, each with its basis."""

from typing import Literal

from powerband.records.value import Basis, Interval, Record

LineName = Literal["weights", "activation", "non_torch", "cuda_graphs", "kv_cache", "unused"]


class MemoryLine(Record):
    """One use of a device's memory, per rank; ``why`` gives the arithmetic in words."""

    name: LineName
    bytes: int
    interval_bytes: Interval
    basis: Basis
    why: str


class Capacity(Record):
    """How much traffic the KV cache can hold; ``users_at_traffic`` is None where no traffic was given."""

    kv_bytes_per_token: int
    kv_tokens: int
    max_concurrency: float
    users_at_traffic: float | None = None


class Remedy(Record):
    """A way to make it fit or to hold more, recomputed: ``predicted`` says what it brings."""

    name: str
    change: str
    predicted: str


class MemoryLedger(Record):
    """Lines that sum to ``memory_bytes`` on each of ``ranks`` devices, whether it ``fits``, and what was assumed."""

    model: str
    device: str
    memory_bytes: int
    ranks: int
    lines: tuple[MemoryLine, ...]
    capacity: Capacity
    fits: bool
    remedies: tuple[Remedy, ...] = ()
    assumed: tuple[str, ...] = ()

    def bytes_of(self, name: LineName) -> int:
        return sum(line.bytes for line in self.lines if line.name == name)
