"""What can be told of an answer without a judge: is it right, does it repeat itself, does its code parse?"""

import ast
import json
import re
import warnings

from powerband.records.quality import Syntax

_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?")
_WINDOW = 4
_REPEATED = 0.5  # more than half of the word groups seen before: it goes round in circles
_FEW_WORDS = 20


def is_right(expected: str, output: str) -> bool:
    """Whether ``output`` gives the expected answer.

    A number is compared with the last number in the output; anything else with the whole output, its last line, or
    what follows its last colon, without regard to case, spaces and the full stop at its end.
    """
    wanted = _plain(expected)
    if _NUMBER.fullmatch(wanted):
        found = _NUMBER.findall(output)
        return bool(found) and _number(found[-1]) == _number(wanted)
    lines = [line for line in output.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return wanted in {_plain(output), _plain(last), _plain(last.rpartition(":")[2])}


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(" .`*\"'").casefold()


def _number(text: str) -> float:
    top, _, bottom = text.replace(",", "").partition("/")
    return float(top) / float(bottom) if bottom and float(bottom) else float(top)


def is_repetitive(text: str) -> bool:
    """Whether more than half of its groups of four words came before; short answers never count."""
    words = text.split()
    if len(words) < _FEW_WORDS:
        return False
    groups = [tuple(words[k : k + _WINDOW]) for k in range(len(words) - _WINDOW + 1)]
    return 1 - len(set(groups)) / len(groups) > _REPEATED


def is_broken(text: str, syntax: Syntax, *, ended: bool) -> bool | None:
    """Whether the code in an answer does not parse; None where there is nothing to parse.

    The first fenced block counts, else the whole answer. Of an answer that was cut off, its last statement may be
    unfinished: lines may be dropped from the end down to the last one that is not indented.
    """
    if syntax == "none":
        return None
    fenced = _FENCE.search(text)
    if fenced is None and ended and syntax == "python" and not _looks_like_code(text):
        return None
    code = fenced[1] if fenced else text
    if not code.strip():
        return True
    complete = ended or (fenced is not None and fenced[0].rstrip().endswith("```"))
    if _parses(code, syntax):
        return False
    if complete or syntax == "json":
        return True
    lines = code.splitlines()
    last = max((k for k, line in enumerate(lines) if line.strip() and not line[0].isspace()), default=0)
    return not any(_parses("\n".join(lines[:count]), syntax) for count in range(len(lines) - 1, last - 1, -1))


def _looks_like_code(text: str) -> bool:
    return bool(re.search(r"^\s*(?:def|class|import|from|for|while|if|return|print\()", text, re.MULTILINE))


def _parses(code: str, syntax: Syntax) -> bool:
    try:
        if syntax == "json":
            json.loads(code)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an odd escape is no broken syntax
                ast.parse(code)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True
