"""How far two bodies of text are apart: the Jensen-Shannon divergence of their words, and the noise of that number."""

import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from powerband.records.value import Record

# A word, a run of digits, one sign, or one character of a script that writes no spaces (Han, kana, Thai).
_TOKEN = re.compile(r"[぀-ヿ㐀-鿿฀-๿]|[^\W\d_぀-ヿ㐀-鿿฀-๿]+|\d+|[^\w\s]")
_MOST_TOKENS = 200_000
_SPLITS = 5
FAR = 0.10  # bits above the noise from which a warning is due; see docs/concepts/quantisation.md


class Distance(Record):
    """``bits``: 0 for equal word frequencies, 1 for no word in common. ``noise`` is what two halves of the reference
    give at the same size, so that a small sample is not called far for being small.
    """

    bits: float
    noise: float
    tokens: int

    @property
    def far(self) -> bool:
        return self.bits > self.noise + FAR


def tokens_of(text: str) -> list[str]:
    return _TOKEN.findall(text.lower())


def jensen_shannon(first: Counter[str], second: Counter[str]) -> float:
    """Divergence in bits of two counts, each taken as a distribution."""
    a, b = sum(first.values()), sum(second.values())
    if not a or not b:
        return 1.0
    total = 0.0
    for token in first.keys() | second.keys():
        p, q = first[token] / a, second[token] / b
        middle = (p + q) / 2
        total += (p * math.log2(p / middle) if p else 0.0) + (q * math.log2(q / middle) if q else 0.0)
    return total / 2


def measure_distance(texts: Sequence[str], reference: Sequence[str], *, seed: int = 0) -> Distance:
    """Distance of ``texts`` from ``reference``, both cut to the same number of tokens, with the noise at that size."""
    generator = random.Random(seed)
    ours, theirs = _pieces(texts), _pieces(reference)
    size = min(sum(map(len, ours)), sum(map(len, theirs)) // 2, _MOST_TOKENS)
    if size == 0:
        return Distance(bits=1.0, noise=1.0, tokens=0)
    far, noise = [], []
    for _ in range(_SPLITS):
        generator.shuffle(theirs)
        generator.shuffle(ours)
        one, rest = _take(theirs, size)
        other, _ = _take(rest, size)
        sample, _ = _take(ours, size)
        far.append(jensen_shannon(sample, one))
        noise.append(jensen_shannon(other, one))
    return Distance(bits=sum(far) / _SPLITS, noise=max(noise), tokens=size)


def _pieces(texts: Sequence[str]) -> list[list[str]]:
    """Tokens in pieces of at most 200, so that halves mix even where the text is one long document."""
    pieces = []
    for text in texts:
        tokens = tokens_of(text)
        pieces += [tokens[start : start + 200] for start in range(0, len(tokens), 200)]
    return pieces


def _take(pieces: list[list[str]], size: int) -> tuple[Counter[str], list[list[str]]]:
    counts: Counter[str] = Counter()
    taken = 0
    for index, piece in enumerate(pieces):
        part = piece[: size - taken]
        counts.update(part)
        taken += len(part)
        if taken >= size:
            return counts, [piece[len(part) :], *pieces[index + 1 :]]
    return counts, []


def script_of(texts: Sequence[str]) -> str:
    """The script most letters are written in, by their Unicode names: LATIN, CJK, CYRILLIC ...; empty for no letter."""
    counts: Counter[str] = Counter()
    for text in texts:
        for character in text[:2000]:
            if character.isalpha():
                counts[unicodedata.name(character, "OTHER").split(" ", 1)[0]] += 1
    return counts.most_common(1)[0][0] if counts else ""
