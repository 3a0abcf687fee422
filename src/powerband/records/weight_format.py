"""How many bytes a matrix takes in each storage format: the values, and the scales and zero points beside them."""

from typing import Any

import msgspec

from powerband.records.value import Record


class WeightFormat(Record):
    """Values of ``bits`` each, with one scale for every ``group`` inputs of an output row.

    ``group`` 0 means one scale for a row, -1 one for the whole matrix. ``block_rows`` > 1 shares a scale over that many
    rows as well. ``scale_bytes`` and ``zero_bits`` count for each group, ``super_bytes`` for each ``super_groups``
    groups, ``index_bytes`` for each input (the act-order table of GPTQ), ``tensor_bytes`` for each matrix.
    """

    name: str
    bits: float
    group: int = 0
    scale_bytes: float = 0.0
    zero_bits: float = 0.0
    block_rows: int = 1
    super_groups: int = 0
    super_bytes: float = 0.0
    index_bytes: float = 0.0
    tensor_bytes: float = 0.0
    embeddings: bool = False  # also stores the embedding and the output head this way

    def replace(self, **changes: Any) -> "WeightFormat":
        return msgspec.structs.replace(self, **changes)

    def bytes_of(self, outputs: int, inputs: int, copies: int = 1) -> int:
        """Bytes of ``copies`` matrices of ``outputs`` rows by ``inputs`` values."""
        values = outputs * inputs * self.bits / 8
        groups = _ceil(outputs, self.block_rows) * self._groups_in_row(inputs) if self.group >= 0 else 1
        extra = groups * (self.scale_bytes + self.zero_bits / 8) + inputs * self.index_bytes + self.tensor_bytes
        if self.super_groups:
            extra += _ceil(groups, self.super_groups) * self.super_bytes
        return copies * round(values + extra)

    def bytes_of_many(self, values: int, rows: int) -> int:
        """Bytes of matrices of several shapes, ``values`` in ``rows`` output rows: exact where groups divide evenly."""
        groups = values / (self.group * self.block_rows) if self.group > 0 else rows if self.group == 0 else 1
        extra = groups * (self.scale_bytes + self.zero_bits / 8) + self.tensor_bytes
        if rows:
            extra += values / rows * self.index_bytes
        if self.super_groups:
            extra += groups / self.super_groups * self.super_bytes
        return round(values * self.bits / 8 + extra)

    def _groups_in_row(self, inputs: int) -> int:
        return _ceil(inputs, self.group) if self.group else 1


def plain(name: str, bits: float) -> WeightFormat:
    return WeightFormat(name=name, bits=bits)


F32, F16, BF16 = plain("f32", 32), plain("f16", 16), plain("bf16", 16)
# fp8 checkpoints hold the scale in f32; static activation scales add four bytes a matrix.
FP8_TENSOR = WeightFormat(name="fp8", bits=8, group=-1, scale_bytes=4, tensor_bytes=4)
FP8_CHANNEL = WeightFormat(name="fp8", bits=8, scale_bytes=4)
FP8_BLOCK = WeightFormat(name="fp8", bits=8, group=128, block_rows=128, scale_bytes=4)
INT8_CHANNEL = WeightFormat(name="int8", bits=8, scale_bytes=4)
BNB_INT8 = WeightFormat(name="bnb-int8", bits=8, scale_bytes=4)
# nf4 with double quantisation: an 8-bit scale for 64 values, and an f32 scale for 256 of those.
BNB_NF4 = WeightFormat(name="nf4", bits=4, group=64, scale_bytes=1, super_groups=256, super_bytes=4, tensor_bytes=68)
BNB_NF4_SINGLE = WeightFormat(name="nf4", bits=4, group=64, scale_bytes=4, tensor_bytes=64)
MXFP4 = WeightFormat(name="mxfp4", bits=4, group=32, scale_bytes=1)
NVFP4 = WeightFormat(name="nvfp4", bits=4, group=16, scale_bytes=1, tensor_bytes=8)
AO_INT8 = WeightFormat(name="int8", bits=8, scale_bytes=2)


def awq(bits: int = 4, group: int = 128) -> WeightFormat:
    return WeightFormat(name=f"awq-int{bits}", bits=bits, group=group, scale_bytes=2, zero_bits=bits)


def gptq(bits: int = 4, group: int = 128) -> WeightFormat:
    """Zero points are stored whether or not they are symmetric, and the group index whether or not act order is on."""
    return WeightFormat(
        name=f"gptq-int{bits}", bits=bits, group=max(group, 0), scale_bytes=2, zero_bits=bits, index_bytes=4
    )


def packed(bits: int, group: int, *, symmetric: bool) -> WeightFormat:
    """compressed-tensors pack-quantized: 16-bit scales, zero points only where asymmetric, two int64 for the shape."""
    zero = 0 if symmetric else bits
    return WeightFormat(
        name=f"int{bits}", bits=bits, group=max(group, 0), scale_bytes=2, zero_bits=zero, tensor_bytes=16
    )


def ao_int4(group: int = 128) -> WeightFormat:
    return WeightFormat(name="int4", bits=4, group=group, scale_bytes=2, zero_bits=16)


def mlx(bits: int = 4, group: int = 64) -> WeightFormat:
    """MLX affine: a 16-bit scale and bias for each group, embeddings included."""
    return WeightFormat(name=f"mlx-{bits}bit", bits=bits, group=group, scale_bytes=2, zero_bits=16, embeddings=True)


def _ceil(value: int, by: int) -> int:
    return -(-value // by) if by > 0 else value
