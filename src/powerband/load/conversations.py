"""ShareGPT-like conversations: each answer is a request whose prompt is all that was said before it."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, TextIO

from powerband.load.trace_rows import Rows, Where, parse_object
from powerband.records.workload import RequestSpec

CHARS_PER_TOKEN = 4  # the files hold text and no counts; English runs at 4 to 4.5 characters a token
CONVERSATIONS = f"ShareGPT-like conversations, {CHARS_PER_TOKEN} characters counted as a token"
_READ_CHARS = 1 << 16
_LONGEST_CHARS = 1 << 26  # of one conversation
_ANSWERS = {"gpt", "assistant", "chatgpt", "bard", "model"}


def read_lines(first: str, file: TextIO, where: Where) -> Rows:
    """One conversation a line."""
    where.line -= 1
    number = 0
    for line in chain([first], file):
        where.line += 1
        if line.strip():
            yield from _turns(parse_object(line, where), number, where)
            number += 1


def read_array(first: str, file: TextIO, where: Where) -> Rows:
    """A JSON array of conversations, taken one at a time, whatever the size of the file."""
    for number, value in enumerate(_elements(first, file, where)):
        where.line = number + 1
        if not isinstance(value, dict):
            raise where.refuse(f"element {number} is no JSON object")
        yield from _turns(value, number, where)


def _elements(first: str, file: TextIO, where: Where) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    buffer, wanted, ended = first.lstrip()[1:], _READ_CHARS, False
    while True:
        buffer = buffer.lstrip(" \t\r\n,")
        if buffer.startswith("]"):
            return
        try:
            if not buffer:
                raise ValueError
            value, end = decoder.raw_decode(buffer)
            if end == len(buffer) and not ended:
                raise ValueError  # a number may go on in what was not read yet
        except RecursionError:
            raise where.refuse("is nested too deeply") from None
        except ValueError:
            more = file.read(wanted)
            if ended or len(buffer) > _LONGEST_CHARS:
                raise where.refuse("is not a JSON array of conversations, or is cut off") from None
            ended = not more
            buffer += more
            wanted *= 2  # so that a long element is not tried over and over
            continue
        yield value
        buffer, wanted = buffer[end:], _READ_CHARS


def _turns(value: dict[str, Any], session: int, where: Where) -> Rows:
    """The requests of one conversation, in order; the whole history before a turn is a prefix it shares."""
    said = value.get("conversations", value.get("messages"))
    if not isinstance(said, list):
        raise where.refuse("has no list 'conversations' or 'messages'")
    history = 0
    for turn in said:
        if not isinstance(turn, dict):
            raise where.refuse(f"a turn is no JSON object: {str(turn)[:40]}")
        speaker = turn.get("from", turn.get("role"))
        text = turn.get("value", turn.get("content"))
        tokens = -(-len(text) // CHARS_PER_TOKEN) if isinstance(text, str) else 0
        if speaker in _ANSWERS and history and tokens:
            yield RequestSpec(
                offset_ns=0,
                input_tokens=history,
                output_tokens=tokens,
                prefix_id=session,
                prefix_tokens=history,
                session=session,
            )
        history += tokens
