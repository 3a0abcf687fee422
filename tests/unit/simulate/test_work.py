"""What kernels reach of a peak depends on the type that they multiply in, not on the one that is stored."""

import msgspec
import pytest

from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.simulate.efficiency import GPU
from powerband.simulate.work import compute_work
from tests.support.shapes import llama_8b

# A layer of Llama 3 8B: attention 2 x 4096 x 4096 + 2 x 4096 x 1024, MLP 3 x 4096 x 14336; the norms are no matter.
LINEAR = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)


def with_weights(dtype: str) -> ModelSpec:
    model = llama_8b()
    parts = tuple(
        msgspec.structs.replace(part, dtype=dtype) if part.role in ("attention", "mlp") else part
        for part in model.parts
    )
    return msgspec.structs.replace(model, parts=parts)


def card(**flops_per_s: float) -> DeviceSpec:
    return DeviceSpec(
        name="card",
        vendor="none",
        kind="gpu",
        memory_bytes=80 << 30,
        bandwidth_bytes_per_s=2e12,
        flops_per_s=flops_per_s,
        source="made up for the test",
    )


@pytest.mark.parametrize("dtype", ["fp8", "mxfp4", "nvfp4", "int4"])
def test_a_card_without_the_type_multiplies_as_in_16_bit(dtype: str) -> None:
    """An A100 has neither 8-bit floats nor 4-bit ones: 312 TFLOP/s, of which dense kernels reach 60 %."""
    work = compute_work(with_weights(dtype), card(bf16=312e12), 1, GPU)
    assert work.token_s == pytest.approx(2 * LINEAR / (312e12 * 0.60), rel=1e-3)


def test_a_card_with_the_type_reaches_that_kernels_share() -> None:
    work = compute_work(with_weights("fp8"), card(bf16=989e12, fp8=1979e12), 1, GPU)
    assert work.token_s == pytest.approx(2 * LINEAR / (1979e12 * 0.45), rel=1e-3)
