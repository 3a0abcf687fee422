"""Reading the user's own text: JSONL, ShareGPT-like JSON, plain text, and the request log of a running server."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from powerband.records.errors import RequestError, in_words
from powerband.records.value import Record

_MOST_BYTES = 1 << 30
_SHORT_CHARS, _LONG_CHARS = 1200, 4000  # of a passage of plain text: some 300 to 1,000 tokens
_LOGGED = re.compile(r"Received request \S+: prompt: (?P<prompt>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_TEXT_KEYS = ("text", "content", "prompt", "input", "question", "instruction")
_ANSWER_KEYS = ("answer", "completion", "response", "output")
_CODE = re.compile(
    r"^\s*(def |class |import |from \w+ import|#include|public |func |fn |const |let |var |\}|SELECT )", re.M
)
_MATHS = re.compile(r"\\frac|\\sum|\\int|\d\s*[=+*/^]\s*-?\d|\bprove\b|\bsolve\b|\bcalculate\b", re.I)
WANTED = "JSON lines with text, prompt or messages; a ShareGPT-like JSON file; plain text; or a vLLM request log"


class Sample(Record):
    """One piece of text; ``messages`` where it is a conversation, whose template the tokenizer of the model applies."""

    text: str
    kind: str
    messages: tuple[dict[str, str], ...] = ()


def read_samples(path: Path) -> list[Sample]:
    """Every sample of ``path``. Raises RequestError where there is none, or where it cannot be read as text."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise RequestError(f"{path} is larger than 1 GiB", hint="give a part of it: some hundred samples are used")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 text: {error.reason}", hint=f"accepted: {WANTED}") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}", hint=f"accepted: {WANTED}") from None
    samples = [sample for sample in _samples(text, path) if sample.text.strip()]
    if not samples:
        raise RequestError(f"{path} holds no text to calibrate with", hint=f"accepted: {WANTED}")
    return samples


def _samples(text: str, path: Path) -> Iterator[Sample]:
    start = text.lstrip()[:1]
    if start == "[":
        yield from _array(text, path)
    elif start == "{":
        yield from _lines(text, path)
    elif "Received request " in text:
        yield from _log(text)
    else:
        for passage in _passages(text):
            yield Sample(text=passage, kind=kind_of(passage))


def _passages(text: str) -> Iterator[str]:
    """Plain text in passages: short paragraphs together, long ones cut, since a file is no list of prompts."""
    held = ""
    for block in re.split(r"\n\s*\n", text):
        held = f"{held}\n\n{block.strip()}".strip()
        while len(held) > _LONG_CHARS:
            yield held[:_LONG_CHARS]
            held = held[_LONG_CHARS:]
        if len(held) >= _SHORT_CHARS:
            yield held
            held = ""
    if held:
        yield held


def _array(text: str, path: Path) -> Iterator[Sample]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is no JSON: {in_words(error)}", hint=f"accepted: {WANTED}") from None
    for value in values:
        yield from _one(value)


def _lines(text: str, path: Path) -> Iterator[Sample]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"{path} line {number} is no JSON: {in_words(error)}", hint=f"accepted: {WANTED}"
            ) from None
        yield from _one(value)


def _log(text: str) -> Iterator[Sample]:
    for match in _LOGGED.finditer(text):
        try:
            prompt = ast.literal_eval(match["prompt"])
        except (ValueError, SyntaxError):
            continue
        yield Sample(text=prompt, kind=kind_of(prompt))


def _one(value: Any) -> Iterator[Sample]:
    if isinstance(value, str):
        yield Sample(text=value, kind=kind_of(value))
        return
    if not isinstance(value, dict):
        return
    for wrapper in ("request", "body"):
        inner = value.get(wrapper)
        if isinstance(inner, dict):
            value = inner
    said = value.get("messages", value.get("conversations"))
    if isinstance(said, list):
        messages = tuple(_message(turn) for turn in said if isinstance(turn, dict))
        text = "\n".join(message["content"] for message in messages)
        kind = kind_of(text)
        yield Sample(text=text, kind="chat" if kind == "prose" else kind, messages=messages)
        return
    prompt = next((value[key] for key in _TEXT_KEYS if isinstance(value.get(key), str)), "")
    answer = next((value[key] for key in _ANSWER_KEYS if isinstance(value.get(key), str)), "")
    text = f"{prompt}\n{answer}" if answer else prompt
    yield Sample(text=text, kind=kind_of(text))


def _message(turn: dict[str, Any]) -> dict[str, str]:
    speaker = str(turn.get("from", turn.get("role", "user")))
    content = turn.get("value", turn.get("content"))
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return {"role": _ROLES.get(speaker, speaker), "content": content if isinstance(content, str) else ""}


def kind_of(text: str) -> str:
    """code, maths, data or prose, by what the text looks like."""
    if len(_CODE.findall(text)) >= 2 or "```" in text:
        return "code"
    if text.lstrip()[:1] in "{[" and text.count('":') >= 2:
        return "data"
    return "maths" if len(_MATHS.findall(text)) >= 2 else "prose"
