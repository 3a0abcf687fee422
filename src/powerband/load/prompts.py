"""Prompts of an exact token count, no two with a common prefix unless the workload says so."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from powerband.records.workload import RequestSpec, Workload


class Pool:
    """Tokens as they stand in a request body, so that a prompt is a few slices of bytes and costs next to nothing.

    ``units`` are the tokens' texts (ids in digits, or words) and ``separator`` stands between two of them; ``heads``
    are distinct units: a prompt starts with its own number written in them, which no other prompt starts with.
    """

    def __init__(self, units: Sequence[bytes], heads: Sequence[bytes], separator: bytes) -> None:
        self._count = len(units)
        self._separator = separator
        self._heads = list(heads)
        twice = [*units, *units]  # any slice of up to one length is in one piece
        self._bytes = separator.join(twice)
        widths = np.array([len(unit) + len(separator) for unit in twice])
        self._starts: list[int] = [0, *np.cumsum(widths).tolist()]

    def words(self, count: int) -> list[str]:
        """The first ``count`` units as text."""
        return [self._bytes[a : b - len(self._separator)].decode() for a, b in pairwise(self._starts[: count + 1])]

    def head_length(self, numbers: int) -> int:
        """How many units it takes to tell ``numbers`` prompts apart."""
        length, reach = 1, len(self._heads)
        while reach < numbers and len(self._heads) > 1:
            length, reach = length + 1, reach * len(self._heads)
        return length

    def text(self, number: int, head_length: int, tokens: int, salt: int) -> bytes:
        """The first ``tokens`` units of stream ``number``: its head, then a slice of the pool that starts anywhere."""
        head = []
        rest = number + salt
        for _ in range(min(head_length, tokens)):
            rest, digit = divmod(rest, len(self._heads))
            head.append(self._heads[digit])
        start = (number * 7919 + salt) % self._count  # a prime, so that neighbours start far apart
        return self._separator.join([*head, *self._slices(start, tokens - len(head))])

    def _slices(self, start: int, tokens: int) -> list[bytes]:
        pieces = []
        while tokens > 0:
            taken = min(tokens, self._count)
            pieces.append(self._bytes[self._starts[start] : self._starts[start + taken] - len(self._separator)])
            tokens -= taken
        return pieces

    def join(self, parts: Sequence[bytes]) -> bytes:
        return self._separator.join(part for part in parts if part)


class Prompts:
    """The prompt of each request of a workload, as bytes for the body.

    Streams 0..n-1 belong to the requests, then come the shared prefixes, then the blocks. ``salt`` makes the prompts
    of two runs differ, so that a server's prefix cache keeps nothing of an earlier run.
    """

    def __init__(
        self, pool: Pool, workload: Workload, salt: int, extra_tokens: int = 0, tokens_per_unit: float = 1.0
    ) -> None:
        requests = workload.requests
        self._pool, self._workload, self._salt = pool, workload, salt
        self._prefixes = sorted({r.prefix_id for r in requests if r.prefix_id is not None})
        self._blocks = sorted({block for r in requests for block in r.block_ids})
        self._first_prefix = len(requests)
        self._first_block = self._first_prefix + len(self._prefixes)
        self._head = pool.head_length(self._first_block + len(self._blocks))
        self._extra = extra_tokens  # what the server's template adds by itself
        self._per_unit = tokens_per_unit

    def _stream(self, number: int, units: int) -> bytes:
        return self._pool.text(number, self._head, units, self._salt)

    def _units(self, tokens: int) -> int:
        return max(1, round(tokens / self._per_unit))

    def of(self, index: int) -> bytes:
        request = self._workload.requests[index]
        tokens = self._units(request.input_tokens - self._extra)
        if request.block_ids and self._workload.block_tokens:
            return self._of_blocks(index, request, tokens)
        if request.prefix_id is None or request.prefix_tokens == 0:
            return self._stream(index, tokens)
        shared = min(self._units(request.prefix_tokens), tokens)
        number = self._first_prefix + bisect_left(self._prefixes, request.prefix_id)
        prefix = self._stream(number, shared)
        return self._pool.join([prefix, self._stream(index, tokens - shared)])

    def _of_blocks(self, index: int, request: RequestSpec, tokens: int) -> bytes:
        parts = []
        for block in request.block_ids:
            taken = min(tokens, self._units(self._workload.block_tokens))
            if taken == 0:
                break
            number = self._first_block + bisect_left(self._blocks, block)
            parts.append(self._stream(number, taken))
            tokens -= taken
        return self._pool.join([*parts, self._stream(index, tokens)])
