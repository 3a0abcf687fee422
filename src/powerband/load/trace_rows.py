"""What the readers of traces share: where they are in a file, and values that must be whole numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from powerband.records.errors import RequestError, in_words
from powerband.records.workload import RequestSpec

FORMATS = (
    "accepted: Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT CSV, Mooncake JSONL, ShareGPT-like JSON, "
    "own JSONL (offset_ns, input_tokens, output_tokens), each also as .gz"
)
_SHOWN_CHARS = 300  # of what a file holds
Rows = Iterator[RequestSpec]


class Where:
    """File and line of the row being read, for error messages."""

    def __init__(self, path: Path) -> None:
        self.path, self.line = path, 1

    def refuse(self, what: str, hint: str = FORMATS) -> RequestError:
        return RequestError(f"{self.path}, line {self.line}: {what[:_SHOWN_CHARS]}", hint=hint)


def parse_object(line: str, where: Where) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise where.refuse(f"is not JSON: {in_words(error)}") from None
    if not isinstance(value, dict):
        raise where.refuse("is not a JSON object")
    return value


def whole_number(value: object, name: str, where: Where) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise where.refuse(f"{name} is {str(value)[:40]!r}", "a whole number is wanted")
    if value < 0:
        raise where.refuse(f"{name} is negative: {value}", "lengths and times count from 0")
    if value >= 1 << 62:
        raise where.refuse(f"{name} is too large: {value}", "is the unit right?")
    return value
