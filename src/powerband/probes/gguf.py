"""GGUF headers: metadata and tensor shapes, without touching the weights.

Format: github.com/ggml-org/ggml docs/gguf.md, versions 2 and 3 (little-endian).
"""

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

from powerband.probes.bounded import BoundedReader
from powerband.probes.gguf_types import TENSOR_TYPES, TensorType
from powerband.records.errors import RequestError

# The largest headers seen hold a 260k vocabulary with merges: about 20 MB.
_HEADER_LIMIT_BYTES = 256 << 20
_KEPT_ARRAY = 4096  # longer arrays are vocabularies; only their length matters here
_MAX_DIMENSIONS = 8

_U32, _U64, _ARRAY = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQ")
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING_TYPE, _ARRAY_TYPE = 8, 9


@dataclass(frozen=True)
class LongArray:
    """An array whose values were stepped over."""

    length: int


Scalar = bool | int | float | str
Metadata = Scalar | list[Scalar] | LongArray


@dataclass(frozen=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # GGML order: the contiguous dimension first
    kind: TensorType

    @property
    def values(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        return self.kind.size_bytes(self.values)


@dataclass
class GgufHeader:
    version: int
    metadata: dict[str, Metadata] = field(default_factory=dict)
    tensors: list[GgufTensor] = field(default_factory=list)


def read_gguf(path: Path) -> GgufHeader:
    """The header of a GGUF file; of all its parts where it is split (``...-00001-of-00003.gguf``).

    Raises RequestError for what is not GGUF, a version not known here, a truncated or lying header, a missing part.
    """
    header = _read_one(path)
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return header
    for part in _other_parts(path, count):
        header.tensors += _read_one(part).tensors
    expected = header.metadata.get("split.tensors.count")
    if isinstance(expected, int) and expected != len(header.tensors):
        raise RequestError(
            f"{path} and its parts hold {len(header.tensors)} tensors, the header promises {expected}",
            hint="are all parts from the same release?",
        )
    return header


def _other_parts(path: Path, count: int) -> list[Path]:
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[3]) != count:
        raise RequestError(
            f"{path} is one of {count} parts, but its name does not say which",
            hint="keep the names the parts were published under: NAME-00001-of-00003.gguf",
        )
    parts = [path.with_name(f"{match[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise RequestError(
            f"{len(missing)} of {count} parts are missing: {missing[0]}", hint=f"put them in {path.parent}"
        )
    return [part for part in parts if part != path]


def _read_one(path: Path) -> GgufHeader:
    with path.open("rb") as handle:
        reader = BoundedReader(path, handle, _HEADER_LIMIT_BYTES)
        if reader.file_size < 24 or reader.take(4, "the magic") != b"GGUF":
            raise RequestError(f"{path} is not a GGUF file", hint="its first four bytes should read GGUF")
        (version,) = reader.unpack(_U32, "the version")
        if version not in (2, 3):
            swapped = version & 0xFFFF == 0
            raise RequestError(
                f"{path} is {'big-endian GGUF' if swapped else f'GGUF version {version}'}",
                hint="versions 2 and 3 (little-endian) can be read; convert it, or update powerband",
            )
        (tensor_count,) = reader.unpack(_U64, "the tensor count")
        (metadata_count,) = reader.unpack(_U64, "the metadata count")
        reader.need(13 * metadata_count + 24 * tensor_count, f"{metadata_count} values and {tensor_count} tensors")
        header = GgufHeader(version)
        for _ in range(metadata_count):
            key = _string(reader, "a metadata key")
            header.metadata[key] = _value(reader, key)
        header.tensors = [_tensor(reader) for _ in range(tensor_count)]
        _check_data_fits(reader, header)
        return header


def _check_data_fits(reader: BoundedReader, header: GgufHeader) -> None:
    total = sum(tensor.bytes for tensor in header.tensors)
    if reader.position + total > reader.file_size:
        raise reader.refuse(f"its tensors need {total} bytes, the file holds {reader.file_size}")


def _string(reader: BoundedReader, what: str) -> str:
    (length,) = reader.unpack(_U64, what)
    return reader.take(length, what).decode("utf-8", "replace")


def _value(reader: BoundedReader, key: str) -> Metadata:
    (kind,) = reader.unpack(_U32, key)
    if kind != _ARRAY_TYPE:
        return _scalar(reader, kind, key)
    item, length = reader.unpack(_ARRAY, key)
    if item in _SCALARS and length > _KEPT_ARRAY:
        reader.skip(length * _SCALARS[item].size, key)
        return LongArray(length)
    if item == _STRING_TYPE and length > _KEPT_ARRAY:
        reader.skip_strings(length, key)
        return LongArray(length)
    reader.need(length, key)
    return [_scalar(reader, item, key) for _ in range(length)]


def _scalar(reader: BoundedReader, kind: int, key: str) -> Scalar:
    if kind == _STRING_TYPE:
        return _string(reader, key)
    if kind not in _SCALARS:
        raise reader.refuse(f"metadata {key!r} has type {kind}, which is not known here")
    value: Scalar = reader.unpack(_SCALARS[kind], key)[0]
    return value


def _tensor(reader: BoundedReader) -> GgufTensor:
    name = _string(reader, "a tensor name")
    (dimensions,) = reader.unpack(_U32, name)
    if dimensions > _MAX_DIMENSIONS:
        raise reader.refuse(f"tensor {name!r} claims {dimensions} dimensions")
    shape = tuple(reader.unpack(_U64, name)[0] for _ in range(dimensions))
    kind, _offset = reader.unpack(_ARRAY, name)
    if kind not in TENSOR_TYPES:
        raise reader.refuse(f"tensor {name!r} has type {kind}, which is not known here")
    tensor = GgufTensor(name, shape, TENSOR_TYPES[kind])
    if shape and shape[0] % tensor.kind.block_values:
        raise reader.refuse(
            f"tensor {name!r} has rows of {shape[0]} values, {tensor.kind.name} packs {tensor.kind.block_values}"
        )
    return tensor
