"""Safetensors headers: names, shapes and sizes of tensors, without touching the weights.

Format: github.com/huggingface/safetensors: eight bytes of length, then that many bytes of JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from powerband.records.errors import RequestError, in_words

# The library itself refuses headers above 100 MB.
HEADER_LIMIT_BYTES = 100_000_000
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    name: str
    dtype: str
    values: int
    bytes: int


def parse_length(data: bytes, source: str, file_bytes: int | None) -> int:
    """Bytes of JSON that the first eight bytes announce; raises RequestError where they cannot be true."""
    if len(data) < 8:
        raise RequestError(f"{source} is too short for a safetensors file", hint="is the download complete?")
    length = int.from_bytes(data[:8], "little")
    limit = HEADER_LIMIT_BYTES if file_bytes is None else min(HEADER_LIMIT_BYTES, file_bytes - 8)
    if not 2 <= length <= limit:
        raise RequestError(
            f"{source} claims a header of {length} bytes, {limit} are possible",
            hint="is it a safetensors file, and whole?",
        )
    return length


def parse_header(data: bytes, source: str) -> list[StoredTensor]:
    """Tensors named in the JSON of a header; raises RequestError for what does not describe tensors."""
    try:
        entries = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            f"the header of {source} is not JSON: {in_words(error)}", hint="is the download complete?"
        ) from None
    if not isinstance(entries, dict):
        raise RequestError(f"the header of {source} is not an object", hint="is it a safetensors file?")
    return [_tensor(name, entry, source) for name, entry in entries.items() if name != "__metadata__"]


def _tensor(name: str, entry: Any, source: str) -> StoredTensor:
    if not isinstance(entry, Mapping):
        raise RequestError(f"{source}: tensor {name!r} has no description", hint="is the file damaged?")
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or dtype not in _BITS:
        raise RequestError(f"{source}: tensor {name!r} is described as {str(entry)[:80]}", hint="is the file damaged?")
    values = 1
    for size in shape:
        values *= size
    stored = offsets[1] - offsets[0]
    if stored != -(-values * _BITS[dtype] // 8):
        raise RequestError(
            f"{source}: tensor {name!r} claims {stored} bytes for {values} values of {dtype}",
            hint="is the file damaged?",
        )
    return StoredTensor(name, dtype, values, stored)


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value)


def read_safetensors(path: Path) -> list[StoredTensor]:
    """Tensors of one file. Raises RequestError for a truncated or lying header."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        length = parse_length(handle.read(8), str(path), size)
        tensors = parse_header(handle.read(length), str(path))
    data = sum(tensor.bytes for tensor in tensors)
    if 8 + length + data > size:
        raise RequestError(
            f"{path} needs {8 + length + data} bytes for its tensors and holds {size}", hint="is the download complete?"
        )
    return tensors


def read_folder(folder: Path) -> list[StoredTensor]:
    """Tensors of a checkpoint folder, by its index where there is one; empty where it holds no weights."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = shard_names(index.read_bytes(), str(index))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing and len(missing) < len(names):
            raise RequestError(
                f"{folder} lacks {len(missing)} of {len(names)} weight files, such as {missing[0]}",
                hint="finish the download, or remove the weights to work from config.json alone",
            )
        files = [] if missing else [folder / name for name in names]
    else:
        files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))
    return [tensor for path in files for tensor in read_safetensors(path)]


def shard_names(data: bytes, source: str) -> list[str]:
    """Distinct file names in an index; a name that leaves the folder is refused."""
    try:
        index = msgspec.json.decode(data)
        names = sorted({str(name) for name in index["weight_map"].values()})
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, AttributeError):
        raise RequestError(f"{source} has no weight_map", hint="a safetensors index is expected") from None
    if any("/" in name or "\\" in name or name.startswith(".") for name in names):
        raise RequestError(f"{source} names files outside its folder", hint="this index is not to be trusted")
    return names
