"""The memory ledger: named lines that sum to the device's memory, each with its basis; and what engines report."""

from typing import Literal

import msgspec

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
    """How much traffic the KV cache can hold; ``users_at_traffic`` is None where no traffic was given.

    ``safe_prompt_tokens`` is the longest prompt that one sequence can hold beside its answer. ``users_interval`` are
    the users at the ends of the cache's own interval; ``users_at_double_length`` those left when every length doubles.
    ``too_long`` counts the requests of the traffic that are longer than one sequence may become.
    """

    kv_bytes_per_token: int
    kv_tokens: int
    max_concurrency: float
    users_at_traffic: float | None = None
    users_interval: Interval | None = None
    users_at_double_length: float | None = None
    safe_prompt_tokens: int | None = None
    too_long: int = 0
    traffic: str = ""


class Remedy(Record):
    """A way to make it fit or to hold more, recomputed: ``predicted`` says what it brings.

    ``settings`` are the knobs that ask for it, where the engine has such knobs; ``users`` counts sequences of the
    traffic, or of the full length where no traffic was given.
    """

    name: str
    change: str
    predicted: str
    settings: dict[str, bool | int | float | str] = msgspec.field(default_factory=dict)
    kv_tokens: int | None = None
    users: float | None = None
    fits: bool = False


class EngineReport(Record):
    """What an engine says of its memory at the start, on one rank; None where it does not say.

    ``activation_bytes`` is the peak of its profiling step; ``non_torch_bytes`` what the driver counts beside PyTorch's
    own memory, after the context was made.
    """

    weights_bytes: float | None = None
    activation_bytes: float | None = None
    non_torch_bytes: float | None = None
    cuda_graphs_bytes: float | None = None
    kv_cache_bytes: float | None = None
    kv_tokens: float | None = None
    max_concurrency: float | None = None
    max_model_len: float | None = None
    total_bytes: float | None = None
    budget_bytes: float | None = None


class Residual(Record):
    """What one start showed beyond the prediction; applied to the next prediction for the same key.

    Weights and non-torch memory are off by bytes, activations and graphs by a ratio, since those scale with the batch.
    """

    device: str
    engine: str
    engine_version: str
    family: str
    weights_bytes: float = 0.0
    non_torch_bytes: float = 0.0
    activation_ratio: float = 1.0
    cuda_graphs_ratio: float = 1.0
    source: str = ""


class MemoryLedger(Record):
    """Lines that sum to ``memory_bytes`` on each of ``ranks`` devices, whether it ``fits``, and what was assumed.

    ``reported`` is what the engine itself is predicted to print; ``shortage`` says in words what does not fit.
    """

    model: str
    device: str
    memory_bytes: int
    ranks: int
    lines: tuple[MemoryLine, ...]
    capacity: Capacity
    fits: bool
    remedies: tuple[Remedy, ...] = ()
    assumed: tuple[str, ...] = ()
    reported: EngineReport = EngineReport()
    shortage: str = ""
    engine_version: str = ""

    def bytes_of(self, name: LineName) -> int:
        return sum(line.bytes for line in self.lines if line.name == name)
