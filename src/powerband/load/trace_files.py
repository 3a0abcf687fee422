"""Traces others recorded, read row by row: which format a file has, and its requests.

Sources of the formats: Azure 2023 and 2024 (github.com/Azure/AzurePublicDataset), BurstGPT (github.com/HPMLL/BurstGPT),
Mooncake (github.com/kvcache-ai/Mooncake), ShareGPT-like conversation files, and powerband's own JSONL.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import msgspec

from powerband.records.errors import RequestError
from powerband.records.units import NS_PER_S
from powerband.records.workload import RequestSpec

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
MOONCAKE_BLOCK_TOKENS = 512
_FORMATS = (
    "accepted: Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT CSV, Mooncake JSONL, ShareGPT-like JSON, "
    "own JSONL (offset_ns, input_tokens, output_tokens), each also as .gz"
)
Rows = Iterator[RequestSpec]


class Where:
    """File and line of the row being read, for error messages."""

    def __init__(self, path: Path) -> None:
        self.path, self.line = path, 1

    def refuse(self, what: str, hint: str = _FORMATS) -> RequestError:
        return RequestError(f"{self.path}, line {self.line}: {what}", hint=hint)


def open_trace(path: Path) -> tuple[str, Rows]:
    """The format's name and its rows, which are read as they are taken; raises RequestError with the line at fault.

    Offsets are in ns from the first row that is kept; rows may be out of order by their clock.
    """
    if not path.is_file():
        raise RequestError(
            f"no traffic file {str(path)!r}", hint="give a trace file or a spec: in=512,out=128,concurrency=8"
        )
    where = Where(path)
    file = _open(path)
    try:
        first = _first_line(file, where)
        name, reader = _recognise(first, where)
    except BaseException:
        file.close()
        raise
    return name, _guarded(reader(first, file, where), file, where)


def _open(path: Path) -> TextIO:
    raw = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115 - closed by its reader
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _guarded(rows: Rows, file: TextIO, where: Where) -> Rows:
    """Whatever bytes a file holds, the reader of the error learns the line and not our insides."""
    with file:
        try:
            yield from rows
        except UnicodeDecodeError as error:
            raise where.refuse(f"not UTF-8 text ({error.reason})") from None
        except (OSError, EOFError) as error:  # a broken gzip stream
            raise where.refuse(f"cannot be read: {error}", "is the file complete?") from None
        except csv.Error as error:
            raise where.refuse(f"not CSV: {error}") from None


def _first_line(file: TextIO, where: Where) -> str:
    try:
        for line in iter(file.readline, ""):
            if line.strip():
                return line
            where.line += 1
    except UnicodeDecodeError as error:
        raise where.refuse(f"not UTF-8 text ({error.reason})") from None
    except (OSError, EOFError) as error:
        raise where.refuse(f"cannot be read: {error}", "is the file complete?") from None
    raise RequestError(f"{where.path} is empty", hint=_FORMATS)


def _recognise(first: str, where: Where) -> tuple[str, Callable[[str, TextIO, Where], Rows]]:
    if first.lstrip().startswith("["):
        return "ShareGPT-like JSON", _sharegpt
    if first.lstrip().startswith("{"):
        try:
            keys = _object(first, where).keys()
        except RequestError:
            raise where.refuse("is not a JSON object on one line") from None
        if {"input_length", "output_length"} <= keys:
            return "Mooncake JSONL", _mooncake
        if {"input_tokens", "output_tokens"} & keys:
            return "own JSONL", _own
        if "conversations" in keys or "messages" in keys:
            return "ShareGPT-like JSONL", _sharegpt_lines
        raise where.refuse(f"has none of the known fields (seen: {', '.join(sorted(keys)[:8])})")
    columns = [name.strip() for name in next(csv.reader([first]), [])]
    if set(BURSTGPT) & set(columns) - {"Timestamp"}:
        _need(columns, BURSTGPT, where)
        return "BurstGPT CSV", _burstgpt
    if set(AZURE) & set(columns):
        _need(columns, AZURE, where)
        return "Azure CSV", _azure
    raise where.refuse(f"is no known header: {first.strip()[:80]!r}")


def _need(columns: list[str], wanted: tuple[str, ...], where: Where) -> None:
    for name in wanted:
        if name not in columns:
            raise where.refuse(f"column {name!r} is missing", f"columns needed: {', '.join(wanted)}")


def _table(first: str, file: TextIO, where: Where, wanted: tuple[str, ...]) -> Iterator[list[str]]:
    """The wanted columns of each row, in that order."""
    header = [name.strip() for name in next(csv.reader([first]))]
    places = [header.index(name) for name in wanted]
    start = where.line
    rows = csv.reader(file)
    for row in rows:
        where.line = start + rows.line_num
        if not row:
            continue
        if len(row) != len(header):
            raise where.refuse(f"has {len(row)} fields where the header has {len(header)}", "is the file complete?")
        yield [row[place] for place in places]


def _azure(first: str, file: TextIO, where: Where) -> Rows:
    origin: int | None = None
    for stamp, context, generated in _table(first, file, where, AZURE):
        at = _clock_ns(stamp, where)
        origin = at if origin is None else origin
        yield _spec(at - origin, _tokens(context, "ContextTokens", where), _tokens(generated, "GeneratedTokens", where))


def _burstgpt(first: str, file: TextIO, where: Where) -> Rows:
    """Rows whose answer has 0 tokens are failed requests by the trace's own description; they are sent all the same."""
    origin: int | None = None
    for stamp, context, generated in _table(first, file, where, BURSTGPT):
        at = _seconds_ns(stamp, where)
        origin = at if origin is None else origin
        yield _spec(
            at - origin, _tokens(context, "Request tokens", where), _tokens(generated, "Response tokens", where)
        )


def _mooncake(first: str, file: TextIO, where: Where) -> Rows:
    origin: int | None = None
    for row in _json_lines(first, file, where):
        at = _whole(row.get("timestamp", 0), "timestamp", where) * 1_000_000
        origin = at if origin is None else origin
        blocks = row.get("hash_ids", [])
        if not isinstance(blocks, list) or not all(isinstance(b, int) and not isinstance(b, bool) for b in blocks):
            raise where.refuse(f"hash_ids {str(blocks)[:40]} is not a list of whole numbers")
        tokens = _whole(row["input_length"], "input_length", where)
        yield RequestSpec(
            offset_ns=at - origin,
            input_tokens=tokens,
            output_tokens=_whole(row.get("output_length"), "output_length", where),
            block_ids=tuple(blocks[: -(-tokens // MOONCAKE_BLOCK_TOKENS)]),
        )


def _own(first: str, file: TextIO, where: Where) -> Rows:
    for row in _json_lines(first, file, where):
        try:
            spec = msgspec.convert({"offset_ns": 0, **row}, _OwnRow)
        except msgspec.ValidationError as error:
            raise where.refuse(
                str(error), "fields: offset_ns, input_tokens, output_tokens, prefix_id, prefix_tokens, session"
            ) from None
        for name in ("offset_ns", "input_tokens", "output_tokens", "prefix_tokens"):
            _whole(getattr(spec, name), name, where)
        if spec.prefix_tokens > spec.input_tokens:
            raise where.refuse(f"prefix_tokens {spec.prefix_tokens} is more than input_tokens {spec.input_tokens}")
        yield RequestSpec(**msgspec.structs.asdict(spec))


class _OwnRow(msgspec.Struct, forbid_unknown_fields=True):
    """RequestSpec by field names; the record itself is stored as an array."""

    offset_ns: int
    input_tokens: int
    output_tokens: int
    prefix_id: int | None = None
    prefix_tokens: int = 0
    session: int | None = None


def _sharegpt(first: str, file: TextIO, where: Where) -> Rows:
    raise NotImplementedError


def _sharegpt_lines(first: str, file: TextIO, where: Where) -> Rows:
    raise NotImplementedError


def _json_lines(first: str, file: TextIO, where: Where) -> Iterator[dict[str, Any]]:
    where.line -= 1
    for line in chain([first], file):
        where.line += 1
        if line.strip():
            yield _object(line, where)


def _object(line: str, where: Where) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise where.refuse(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise where.refuse("is not a JSON object")
    return value


def _spec(offset_ns: int, input_tokens: int, output_tokens: int) -> RequestSpec:
    return RequestSpec(offset_ns=offset_ns, input_tokens=input_tokens, output_tokens=output_tokens)


def _whole(value: object, name: str, where: Where) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise where.refuse(f"{name} is {str(value)[:40]!r}", "a whole number is wanted")
    if value < 0:
        raise where.refuse(f"{name} is negative: {value}", "lengths and times count from 0")
    if value >= 1 << 62:
        raise where.refuse(f"{name} is too large: {value}", "is the unit right?")
    return value


def _tokens(text: str, name: str, where: Where) -> int:
    try:
        number = float(text)
        return _whole(int(text) if text.strip().lstrip("-").isdigit() else number, name, where)
    except (ValueError, OverflowError):
        raise where.refuse(f"{name} is {text[:40]!r}", "a whole number of tokens is wanted") from None


def _seconds_ns(text: str, where: Where) -> int:
    try:
        return round(float(text) * NS_PER_S)
    except (ValueError, OverflowError):
        raise where.refuse(f"Timestamp is {text[:40]!r}", "seconds are wanted") from None


def _clock_ns(text: str, where: Where) -> int:
    """Azure writes 7 digits of a second in 2023, 6 and a UTC offset in 2024; differences are exact to the ns."""
    main, dot, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        moment = datetime.fromisoformat(main + zone) if dot else datetime.fromisoformat(text.strip())
    except ValueError:
        raise where.refuse(f"TIMESTAMP is {text[:40]!r}", "such as 2023-11-16 18:15:46.6805900") from None
    epoch = datetime(1970, 1, 1, tzinfo=moment.tzinfo)  # only differences are used
    since = moment - epoch
    return (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1000 + int((digits + "0" * 9)[:9])
