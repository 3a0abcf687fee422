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

from powerband.load.conversations import CONVERSATIONS, read_array, read_lines
from powerband.load.trace_rows import FORMATS, Rows, Where, parse_object, whole_number
from powerband.records.errors import RequestError, in_words
from powerband.records.units import NS_PER_S
from powerband.records.workload import RequestSpec

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
MOONCAKE_BLOCK_TOKENS = 512
_LONGEST_LINE = 1 << 26


def open_trace(path: Path) -> tuple[str, Rows]:
    """The format's name and its rows, which are read as they are taken; raises RequestError with the line at fault.

    Offsets are in ns from the first row that is kept; rows may be out of order by their clock.
    """
    if path == Path():
        raise RequestError("the traffic is empty", hint="give a trace file or a spec: in=512,out=128,concurrency=8")
    if path.is_dir():
        raise RequestError(f"the traffic {str(path)!r} is a folder", hint="name a trace file in it")
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
            raise where.refuse(f"cannot be read: {in_words(error)}", "is the file complete?") from None
        except csv.Error as error:
            raise where.refuse(f"not CSV: {error}") from None


def _first_line(file: TextIO, where: Where) -> str:
    try:
        while line := file.readline(1 << 16):
            if line.lstrip().startswith("["):
                return line  # a JSON array may be one line of any length: its reader goes on from here
            if line.strip():
                return line if line.endswith("\n") else line + file.readline(_LONGEST_LINE)
            where.line += 1
    except UnicodeDecodeError as error:
        raise where.refuse(f"not UTF-8 text ({error.reason})") from None
    except (OSError, EOFError) as error:
        raise where.refuse(f"cannot be read: {in_words(error)}", "is the file complete?") from None
    raise RequestError(f"{where.path} is empty", hint=FORMATS)


def _recognise(first: str, where: Where) -> tuple[str, Callable[[str, TextIO, Where], Rows]]:
    if first.lstrip().startswith("["):
        return CONVERSATIONS, read_array
    if first.lstrip().startswith("{"):
        try:
            keys = parse_object(first, where).keys()
        except RequestError:
            raise where.refuse("is not a JSON object on one line") from None
        if {"input_length", "output_length"} <= keys:
            return "Mooncake JSONL", _mooncake
        if {"input_tokens", "output_tokens"} & keys:
            return "own JSONL", _own
        if "conversations" in keys or "messages" in keys:
            return CONVERSATIONS, read_lines
        raise where.refuse(f"has none of the known fields (seen: {', '.join(sorted(keys)[:8])})")
    columns = _header(first, where)
    if set(BURSTGPT) & set(columns) - {"Timestamp"}:
        _need(columns, BURSTGPT, where)
        return "BurstGPT CSV", _burstgpt
    if set(AZURE) & set(columns):
        _need(columns, AZURE, where)
        return "Azure CSV", _azure
    raise where.refuse(f"is no known header: {first.strip()[:80]!r}")


def _header(first: str, where: Where) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader([first]), [])]
    except csv.Error as error:
        raise where.refuse(f"not CSV: {error}") from None


def _need(columns: list[str], wanted: tuple[str, ...], where: Where) -> None:
    for name in wanted:
        if name not in columns:
            raise where.refuse(f"column {name!r} is missing", f"columns needed: {', '.join(wanted)}")


def _table(first: str, file: TextIO, where: Where, wanted: tuple[str, ...]) -> Iterator[list[str]]:
    """The wanted columns of each row, in that order."""
    header = _header(first, where)
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
        at = whole_number(row.get("timestamp", 0), "timestamp", where) * 1_000_000
        origin = at if origin is None else origin
        blocks = row.get("hash_ids", [])
        if not isinstance(blocks, list) or not all(isinstance(b, int) and not isinstance(b, bool) for b in blocks):
            raise where.refuse(f"hash_ids {str(blocks)[:40]} is not a list of whole numbers")
        tokens = whole_number(row.get("input_length"), "input_length", where)
        yield RequestSpec(
            offset_ns=at - origin,
            input_tokens=tokens,
            output_tokens=whole_number(row.get("output_length"), "output_length", where),
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
            whole_number(getattr(spec, name), name, where)
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


def _json_lines(first: str, file: TextIO, where: Where) -> Iterator[dict[str, Any]]:
    where.line -= 1
    for line in chain([first], file):
        where.line += 1
        if line.strip():
            yield parse_object(line, where)


def _spec(offset_ns: int, input_tokens: int, output_tokens: int) -> RequestSpec:
    return RequestSpec(offset_ns=offset_ns, input_tokens=input_tokens, output_tokens=output_tokens)


def _tokens(text: str, name: str, where: Where) -> int:
    try:
        number = float(text)
        return whole_number(int(text) if text.strip().lstrip("-").isdigit() else number, name, where)
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
