"""Write a GGUF of few, wide layers in 16 bits, with the vocabulary of another: decoding it is bound by memory traffic.

    python bench/wide_gguf.py SmolLM2-135M-Instruct.Q4_1.gguf wide.gguf

The weights are zero: speed does not depend on them. Format: github.com/ggml-org/ggml docs/gguf.md, version 3.
"""

import argparse
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32, F32 = 8, 9, 4, 6
ALIGN = 32


@dataclass(frozen=True)
class Shape:
    """Two layers of a Llama: widths as in config.json."""

    hidden: int = 2048
    intermediate: int = 5632
    heads: int = 32
    kv_heads: int = 4
    layers: int = 2


def read_values(file: BinaryIO) -> dict[str, bytes]:
    """Every metadata value as it stands in the file, type and all."""
    if file.read(4) != b"GGUF":
        raise SystemExit("not a GGUF file")
    _, _, count = struct.unpack("<IQQ", file.read(20))
    found = {}
    for _ in range(count):
        name = _text(file)
        begin = file.tell()
        (kind,) = struct.unpack("<I", file.read(4))
        _skip(file, kind)
        end = file.tell()
        file.seek(begin)
        found[name] = file.read(end - begin)
    return found


def _text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(length).decode()


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        _text(file)
    elif kind == ARRAY:
        of, length = struct.unpack("<IQ", file.read(12))
        if of in SIZES:
            file.seek(SIZES[of] * length, 1)
        else:
            for _ in range(length):
                _skip(file, of)
    else:
        file.seek(SIZES[kind], 1)


def tensors(shape: Shape, vocabulary: int) -> list[tuple[str, tuple[int, ...], int]]:
    """Name, GGML shape and type (0: 32 bits, 1: 16 bits) of every tensor."""
    head = shape.hidden // shape.heads
    rows: list[tuple[str, tuple[int, ...], int]] = [
        ("token_embd.weight", (shape.hidden, vocabulary), 1),
        ("output_norm.weight", (shape.hidden,), 0),
    ]
    for k in range(shape.layers):
        matrices = {
            "attn_q": (shape.hidden, shape.heads * head),
            "attn_k": (shape.hidden, shape.kv_heads * head),
            "attn_v": (shape.hidden, shape.kv_heads * head),
            "attn_output": (shape.heads * head, shape.hidden),
            "ffn_gate": (shape.hidden, shape.intermediate),
            "ffn_up": (shape.hidden, shape.intermediate),
            "ffn_down": (shape.intermediate, shape.hidden),
        }
        rows += [(f"blk.{k}.{name}.weight", sizes, 1) for name, sizes in matrices.items()]
        rows += [(f"blk.{k}.{name}.weight", (shape.hidden,), 0) for name in ("attn_norm", "ffn_norm")]
    return rows


def write(source: Path, target: Path, shape: Shape | None = None) -> None:
    """Write ``target`` with the vocabulary and template of ``source``."""
    shape = shape or Shape()
    with source.open("rb") as file:
        values = read_values(file)
    (vocabulary,) = struct.unpack("<Q", values["tokenizer.ggml.tokens"][8:16])
    sizes = {
        "block_count": shape.layers, "context_length": 8192, "embedding_length": shape.hidden,
        "feed_forward_length": shape.intermediate, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "rope.dimension_count": shape.hidden // shape.heads,
        "vocab_size": vocabulary,
    }  # fmt: skip
    values = {name: value for name, value in values.items() if not name.startswith("llama.")}
    values |= {f"llama.{name}": struct.pack("<II", U32, size) for name, size in sizes.items()}
    values["llama.attention.layer_norm_rms_epsilon"] = struct.pack("<If", F32, 1e-5)
    values["general.file_type"] = struct.pack("<II", U32, 1)
    rows = tensors(shape, vocabulary)
    with target.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(values)))
        for name, value in values.items():
            file.write(_packed(name) + value)
        offset = 0
        for name, dimensions, kind in rows:
            file.write(_packed(name) + struct.pack("<I", len(dimensions)))
            file.write(struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", kind, offset))
            offset += _padded(_bytes(dimensions, kind))
        file.write(b"\0" * (_padded(file.tell()) - file.tell()))
        file.truncate(file.tell() + offset)


def _packed(name: str) -> bytes:
    return struct.pack("<Q", len(name.encode())) + name.encode()


def _bytes(dimensions: tuple[int, ...], kind: int) -> int:
    count = 1
    for size in dimensions:
        count *= size
    return count * (4 if kind == 0 else 2)


def _padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    write(args.source, args.target)
    print(f"{args.target}: {args.target.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
