"""Time of one engine step as a function of what is in it, from the datasheet or calibrated by runs."""

import math

import msgspec

from powerband.records.config import EngineConfig, Value
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.value import Basis, Record
from powerband.simulate.roofline import UNKNOWN_TERMS, Terms, compute_terms

# One calibrated factor each, in this order: measured seconds over datasheet seconds.
FACTORS = (
    "overhead",
    "weights",
    "small_batch",
    "compute",
    "sequence",
    "context",
    "pairs",
    "communication",
    "single",
    "leftover",
    "request",
    "launch",
)
REQUEST, LAUNCH = FACTORS.index("request"), FACTORS.index("launch")
# Before calibration. ``small_batch``, ``single`` and ``leftover`` are what few tokens, a lone one, and tokens beyond
# whole tiles of a kernel cost on top of the rest, as a share of the datasheet's arithmetic for them.
PRIOR_MEAN = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.2, 1.0, 1.0)
LEAST = (0.02, 0.02, 0.0, 0.02, 0.02, 0.02, 0.02, 0.02, -0.8, 0.0, 0.02, 0.02)

# How far the datasheet may be off before anything was measured (relative standard deviation, assumed): a part common
# to all terms, and each term's own. bench/predict_field.py publishes how often the resulting intervals hold.
PRIOR_COMMON = {"gpu": 0.12, "cpu": 0.60, "unknown": 1.0}
PRIOR_OWN = {  # in the order of FACTORS
    "unknown": (2.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 0.3, 0.3, 2.0, 2.0),
    "gpu": (0.5, 0.20, 1.0, 0.50, 0.6, 0.3, 0.5, 0.5, 0.05, 0.05, 2.0, 0.7),
    "cpu": (0.8, 0.5, 2.0, 0.4, 0.8, 0.5, 0.5, 0.5, 0.3, 0.3, 0.8, 0.5),
}
PRIOR_RESIDUAL = 0.08  # what the form of the model itself may miss, relative
SMALL_BATCH = 8  # tokens at which a matrix kernel has lost half of what few columns cost it (small_batch)
UNSEEN_KNOB = 0.06  # more spread for each knob value that no calibrating run had
# These bound the batch, which the simulator follows; they do not change what a step of given content costs.
SCHEDULER_KNOBS = frozenset(
    {
        "n_parallel",
        "n_ctx",
        "n_batch",
        "cont_batching",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "slots",
    }
)


class StepTime(Record):
    """Seconds of a step: datasheet terms of one config, each times a factor with its covariance.

    ``factors`` are those of PRIOR_MEAN and ``basis`` is ``computed`` until runs calibrate them (then ``measured``).
    ``residual`` is the relative error of a run's mean step that remains. ``at`` carries the factors over to another
    config.
    """

    model: ModelSpec | None
    device: DeviceSpec | None
    config: EngineConfig
    terms: Terms
    factors: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    residual: float
    basis: Basis
    runs: tuple[str, ...] = ()
    seen: dict[str, tuple[Value, ...]] = msgspec.field(default_factory=dict)

    def at(self, config: EngineConfig) -> "StepTime":
        """The same machine with another config: the datasheet says how the terms change, the factors stay."""
        terms = _terms(self.model, self.device, config)
        return msgspec.structs.replace(self, config=config, terms=terms)

    def scaled(self, ratio: float) -> "StepTime":
        """Every term ``ratio`` times as long, the front end's too; used for the ends of an interval."""
        terms = msgspec.structs.replace(
            self.terms,
            front_request_s=ratio * self.terms.front_request_s,
            front_token_s=ratio * self.terms.front_token_s,
        )
        return msgspec.structs.replace(self, terms=terms, factors=tuple(ratio * factor for factor in self.factors))

    def parts(
        self, *, sequences: int, context_tokens: float, prefill_tokens: int, pairs: float, sampled: int
    ) -> tuple[float, ...]:
        """Datasheet seconds of a step by factor, in the order of ``FACTORS`` (the last, per request, is 0 here).

        ``sequences`` decode with ``context_tokens`` in all; ``prefill_tokens`` are prefilled, attending to ``pairs``
        (query, key) pairs; ``sampled`` sequences emit a token. Parts times factors sum to the step.
        """
        t = self.terms
        tokens = sequences + prefill_tokens
        passes = -(-tokens // t.ubatch_tokens) if tokens else 0
        weights = passes * t.weight_s + passes * t.expert_s * _hit_share(t.expert_share, tokens)
        few = tokens / (1 + tokens / SMALL_BATCH) * t.token_s
        compute = tokens * t.token_s + sampled * t.sampled_s
        hidden = 1 - t.overlap
        f = self.factors
        if tokens == 1:
            weights, few, compute = (x * t.single_ratio for x in (weights, few, compute))
        if f[1] * weights >= f[2] * few + f[3] * compute:
            few, compute = few * hidden, compute * hidden
        else:
            weights *= hidden
        left = sequences % t.tile_tokens if not prefill_tokens else 0
        context_tokens = padded(context_tokens, sequences, t.pad_tokens)
        sliding = min(context_tokens, sequences * t.window_tokens) * t.sliding_token_s
        found = (
            (t.overhead_s if tokens else 0.0) + (t.prefill_step_s if prefill_tokens else 0.0),
            weights,
            few,
            compute,
            sampled * t.sequence_s,
            context_tokens * t.context_token_s + sliding + sequences * t.state_s,
            pairs * t.pair_s + min(pairs, t.cap_tokens * prefill_tokens) * t.capped_pair_s,
            t.collective_s + tokens * t.collective_token_s if tokens else 0.0,
            weights + compute if tokens == sequences == 1 else 0.0,
            left * t.token_s,
            0.0,
            0.0,
        )
        if tokens > (t.prompt_graph_tokens if prefill_tokens else t.graph_tokens):
            seconds = sum(factor * part for factor, part in zip(f, found, strict=True))
            if f[LAUNCH] * t.launch_s > seconds:
                return (*(0.0,) * LAUNCH, t.launch_s)
        return found

    def seconds(
        self, *, sequences: int, context_tokens: float = 0.0, prefill_tokens: int = 0, prior_tokens: int = 0
    ) -> float:
        """Time of one step; a prefill of ``prefill_tokens`` follows ``prior_tokens`` already cached and samples."""
        pairs = prefill_tokens * (prior_tokens + (prefill_tokens + 1) / 2)
        sampled = sequences + (1 if prefill_tokens else 0)
        parts = self.parts(
            sequences=sequences,
            context_tokens=context_tokens,
            prefill_tokens=prefill_tokens,
            pairs=pairs,
            sampled=sampled,
        )
        return sum(factor * part for factor, part in zip(self.factors, parts, strict=True))

    @property
    def request_s(self) -> float:
        """Host time of a request outside the steps: connection, tokenising, the first write."""
        return self.factors[REQUEST] * self.terms.request_s

    def spread(self, parts: tuple[float, ...]) -> float:
        """Relative standard deviation of a time made of ``parts``: of the factors, of the form, of unseen knobs."""
        total = sum(factor * part for factor, part in zip(self.factors, parts, strict=True))
        if total <= 0:
            return 0.0
        rows = zip(parts, self.covariance, strict=True)
        variance = sum(a * sum(c * b for c, b in zip(row, parts, strict=True)) for a, row in rows)
        return math.sqrt(max(variance, 0.0) / total**2 + self.residual**2 + self.unseen * UNSEEN_KNOB**2)

    @property
    def unseen(self) -> int:
        """Knobs set to a value that no calibrating run had; 0 before calibration, whose spread covers everything."""
        if not self.runs:
            return 0
        return sum(
            name not in SCHEDULER_KNOBS and value not in self.seen.get(name, ())
            for name, value in self.config.knobs.items()
        )


def predict_from_datasheet(model: ModelSpec | None, device: DeviceSpec | None, config: EngineConfig) -> StepTime:
    """The step time before anything was measured: the roofline with assumed efficiencies and a wide covariance.

    Without a model or a device (a server that one is only attached to) a guess takes its place, wider still.
    """
    kind = "unknown" if model is None or device is None else "cpu" if device.kind == "cpu" else "gpu"
    return StepTime(
        model=model,
        device=device,
        config=config,
        terms=_terms(model, device, config),
        factors=PRIOR_MEAN,
        covariance=prior_covariance(kind),
        residual=PRIOR_RESIDUAL,
        basis="assumed" if kind == "unknown" else "computed",
    )


def _terms(model: ModelSpec | None, device: DeviceSpec | None, config: EngineConfig) -> Terms:
    return UNKNOWN_TERMS if model is None or device is None else compute_terms(model, device, config)


def prior_covariance(kind: str) -> tuple[tuple[float, ...], ...]:
    """Covariance of the factors before calibration: a part that all share (by their means), and each term's own."""
    common, own = PRIOR_COMMON[kind] ** 2, PRIOR_OWN[kind]
    return tuple(
        tuple(common * mean * other + (spread**2 if row == column else 0.0) for column, other in enumerate(PRIOR_MEAN))
        for row, (mean, spread) in enumerate(zip(PRIOR_MEAN, own, strict=True))
    )


def padded(context_tokens: float, sequences: int, multiple: int) -> float:
    """``context_tokens`` of ``sequences`` in all, each sequence's mean share rounded up to a multiple."""
    if multiple <= 1 or not sequences:
        return context_tokens
    return sequences * multiple * math.ceil(context_tokens / sequences / multiple - 1e-9)


def _hit_share(expert_share: float, tokens: int) -> float:
    """Expected share of experts that at least one of ``tokens`` is routed to, routing taken as uniform."""
    return 1.0 - (1.0 - expert_share) ** tokens if expert_share < 1 else 1.0
