"""Finding figures in a log: patterns with one number, sizes in the unit the engine means."""

import re
from collections.abc import Iterator

from powerband.records.units import GIB, KIB, MIB

# vLLM V0 and SGLang print GB and mean GiB; every engine here counts in powers of two.
_UNITS = {"GiB": GIB, "GB": GIB, "MiB": MIB, "MB": MIB, "KiB": KIB, "KB": KIB, "B": 1}
NUMBER = r"(-?[\d,]*\.?\d+)"
SIZE = NUMBER + r"\s*(GiB|GB|MiB|MB|KiB|KB|B)"


def number(text: str) -> float:
    return float(text.replace(",", ""))


def numbers(pattern: str, text: str) -> Iterator[float]:
    for match in re.finditer(pattern, text):
        yield number(match[1])


def last(pattern: str, text: str) -> float | None:
    found = list(numbers(pattern, text))
    return found[-1] if found else None


def first(pattern: str, text: str) -> float | None:
    return next(numbers(pattern, text), None)


def sizes(pattern: str, text: str) -> list[float]:
    """Bytes of every match; the pattern holds SIZE as its first two groups."""
    return [number(match[1]) * _UNITS[match[2]] for match in re.finditer(pattern, text)]


def first_size(pattern: str, text: str) -> float | None:
    found = sizes(pattern, text)
    return found[0] if found else None


def largest_size(pattern: str, text: str) -> float | None:
    """The largest match: each rank prints its own line."""
    return max(sizes(pattern, text), default=None)


def words(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
