"""What a quantised format is, whether an engine takes it on a card, and the card of what was done to a model."""

from typing import Literal

import msgspec

from powerband.records.value import Basis, Interval, Record

# runs: its own kernel; slow: it runs, but not the way one wants it for; unknown: no source says either.
Answer = Literal["runs", "slow", "refused", "unknown"]


class Caveat(Record):
    """Something to know about a combination that runs; ``rule`` names the row of the table it comes from."""

    rule: str
    text: str
    source: str


class Support(Record):
    """Whether ``engine`` runs ``format`` on ``device``; ``instead`` are the nearest formats that it does run there.

    ``prefill_seen`` and ``decode_seen`` are times that others measured, over those of 16-bit weights.
    """

    format: str
    engine: str
    device: str
    answer: Answer
    why: str
    rule: str = ""
    kernel: str = ""
    source: str = ""
    instead: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    prefill_seen: float | None = None
    decode_seen: float | None = None

    @property
    def possible(self) -> bool:
        return self.answer in ("runs", "slow")


class Forecast(Record):
    """Figures of one format at the traffic, beside the model as it is; None where nothing was asked or it cannot be.

    ``weight_bytes`` and ``users`` come from the memory ledger. The speeds are simulated from a datasheet unless runs
    calibrated it, with their 90 % intervals under the same names.
    """

    weight_bytes: int
    fits: bool
    kv_tokens: int
    users: float | None = None
    output_tokens_per_s: float | None = None
    ttft_p50_s: float | None = None
    tpot_p50_s: float | None = None
    prefill_ratio: float | None = None  # of prompt processing time, over that of the model as it is
    intervals: dict[str, Interval] = msgspec.field(default_factory=dict)
    basis: Basis = "computed"


class PlanRow(Record):
    """One way to quantise: the command's method, what comes out, whether it can run, what it brings and risks."""

    method: str
    format: str
    support: Support
    risk: Literal["low", "medium", "high"]
    risk_why: str
    tool: str
    needs_calibration: bool
    forecast: Forecast | None = None
    missing: str = ""  # why there is no forecast
    on_load: str = ""  # the engine's own setting that quantises so while loading, without a new checkpoint


class CacheRow(Record):
    """A narrower KV cache: the settings that ask for it, whether they can be used, and the tokens it then holds."""

    format: str
    settings: dict[str, str]
    support: Support
    kv_tokens: int | None = None
    users: float | None = None


class Effort(Record):
    """What a job is expected to take, before it starts."""

    seconds: float
    interval_s: Interval
    memory_bytes: int
    output_bytes: int
    disk_bytes: int  # at the worst moment, the output included
    basis: Basis
    why: str


class CalibrationSet(Record):
    """The text that a method looks at: where it came from, what was taken, and how far it is from the traffic."""

    source: str
    sha256: str
    samples: int
    tokens: int
    seed: int
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    length_p50: int = 0
    length_p90: int = 0
    language: str = ""
    distance: float | None = None  # Jensen-Shannon to the reference text, in bits: 0 the same, 1 nothing in common
    distance_noise: float | None = None  # what two halves of the reference text give
    distance_to: str = ""
    warnings: tuple[str, ...] = ()


class QuantCard(Record):
    """What was done to a model, written beside it: enough to do it again and to know what was left alone."""

    method: str
    format: str
    tool: str
    versions: dict[str, str]
    source_model: str
    source_quantisation: str
    source_bytes: int
    output_bytes: int
    options: dict[str, bool | int | float | str]
    command: str
    seconds: float
    peak_memory_bytes: int
    expected: Effort
    machine: str
    created: str
    cpu_seconds: float | None = None  # of all its threads; what a busy machine does not stretch
    skipped_modules: tuple[str, ...] = ()
    tensors: dict[str, int] = msgspec.field(default_factory=dict)  # stored type -> how many
    calibration: CalibrationSet | None = None
    notes: tuple[str, ...] = ()
    files: dict[str, int] = msgspec.field(default_factory=dict)  # name -> bytes
    content_sha256: str = ""  # over the weight files, in name order
