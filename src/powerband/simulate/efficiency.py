"""What share of a datasheet real kernels reach, and what the host adds: assumed until a run calibrates it."""

import msgspec

from powerband.records.model import ModelSpec
from powerband.records.value import Record


class Efficiency(Record):
    """Shares of the peak, and seconds of launch and host work.

    ``overlap`` 1: weight streaming hides behind arithmetic (or the reverse); 0: they add up. ``prefill_layer_s`` comes
    on top in a step with prompt tokens, which no captured graph covers.
    """

    bandwidth: float
    expert_bandwidth: float
    compute: float
    attention: float
    overlap: float
    step_s: float
    layer_s: float
    sequence_s: float
    request_s: float
    compute_by_dtype: dict[str, float] = msgspec.field(default_factory=dict)
    # Experts' matrices are many and small: their share of what a dense product reaches, where they multiply in 16 bit,
    # and in 8 or 4, whose kernels for many small matrices gain little from the narrower type.
    grouped: float = 1.0
    grouped_narrow: float = 1.0
    expert_layer_s: float = 0.0
    mla_layer_s: float = 0.0
    recurrent_layer_s: float = 0.0
    index_layer_s: float = 0.0
    prefill_layer_s: float = 0.0
    sampled_logit_s: float = 0.0

    def compute_share(self, weight_dtype: str) -> float:
        for prefix, share in self.compute_by_dtype.items():
            if weight_dtype.startswith(prefix):
                return share
        return self.compute


# Dense GEMM and read shares after public kernel benchmarks; the rest chosen with one source of field rows in view
# (docs/reference/prediction-accuracy.md says which, and what the constants are worth on the others).
GPU = Efficiency(
    bandwidth=0.82,
    expert_bandwidth=0.60,
    compute=0.60,
    compute_by_dtype={"fp8": 0.45, "int8": 0.45, "nvfp4": 0.35, "mxfp4": 0.35, "fp4": 0.35},
    grouped=0.55,
    grouped_narrow=0.18,  # by TTFT of the 8 and 4 bit mixtures among those rows: 0.55 gave a third of what was measured
    attention=0.40,
    overlap=0.9,
    step_s=0.8e-3,
    layer_s=20e-6,
    expert_layer_s=30e-6,
    mla_layer_s=15e-6,
    recurrent_layer_s=40e-6,
    index_layer_s=40e-6,
    prefill_layer_s=60e-6,
    sequence_s=12e-6,
    request_s=20e-3,
)
# CPU: weights are unpacked where they are used, so reading and arithmetic add up; the sampler walks the vocabulary.
CPU = Efficiency(
    bandwidth=0.6,
    expert_bandwidth=0.5,
    compute=0.45,
    attention=0.3,
    overlap=0.3,
    step_s=0.4e-3,
    layer_s=10e-6,
    sequence_s=0.1e-3,
    sampled_logit_s=8e-9,
    request_s=3e-3,
)


def extra_layers_s(model: ModelSpec, eff: Efficiency) -> float:
    """Launch time of what a plain attention layer does not have: routers, latent projections, state scans, indexers."""
    total = eff.expert_layer_s * model.n_layers if model.experts else 0.0
    for group in model.layers:
        if group.kind == "mla":
            total += group.count * eff.mla_layer_s
        elif group.kind == "recurrent":
            total += group.count * eff.recurrent_layer_s
        if group.index_bytes_per_token:
            total += group.count * eff.index_layer_s
    return total
