"""Small GGUF files written by hand, byte by byte, after docs/gguf.md of ggml."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

Value = bool | int | float | str | list[str] | list[int]
# (name, shape with the contiguous dimension first, type id, bytes of data)
Tensor = tuple[str, tuple[int, ...], int, int]

LLAMA: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.tokens": [f"t{number}" for number in range(32)],
}
# Q4_K (type 12) packs 256 values into 144 bytes, Q6_K (14) into 210, F32 (0) takes four bytes each.
TENSORS: tuple[Tensor, ...] = (
    ("token_embd.weight", (256, 32), 14, 32 * 210),
    ("output_norm.weight", (256,), 0, 1024),
    ("blk.0.attn_q.weight", (256, 256), 12, 256 * 144),
    ("blk.0.attn_k.weight", (256, 128), 12, 128 * 144),
    ("blk.1.attn_q.weight", (256, 256), 12, 256 * 144),
    ("blk.1.attn_k.weight", (256, 128), 12, 128 * 144),
)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def metadata(values: Mapping[str, Value]) -> bytes:
    out = b""
    for key, value in values.items():
        out += text(key) + typed(value)
    return out


def typed(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(str(item)) for item in value)
    return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *[int(item) for item in value])


def write_gguf(
    path: Path,
    values: Mapping[str, Value] = LLAMA,
    tensors: Sequence[Tensor] = TENSORS,
    *,
    version: int = 3,
    data: bool = True,
) -> Path:
    """A whole file; ``data=False`` leaves the weights out, as a broken download does."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + metadata(values)
    offset = 0
    for name, shape, kind, size in tensors:
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-size // 32) * 32
    out += b"\0" * (-len(out) % 32)
    path.write_bytes(out + (b"\0" * offset if data else b""))
    return path
