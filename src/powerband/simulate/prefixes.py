"""A prefix cache: how much of a prompt is in the cache already when its turn comes."""

from collections import OrderedDict

from powerband.records.workload import RequestSpec, Workload


class PrefixCache:
    """Shared heads and blocks of prompts that were computed, the least recently used given up first.

    ``granule_tokens``: only whole blocks of so many tokens are found again. ``capacity_tokens`` None: nothing is given
    up. What running sequences hold is not set against the capacity, so hits are overestimated where memory is short.
    """

    def __init__(self, block_tokens: int, granule_tokens: int, capacity_tokens: int | None) -> None:
        self._block_tokens, self._granule = block_tokens, granule_tokens
        self._capacity = capacity_tokens
        self._kept: OrderedDict[tuple[str, int], int] = OrderedDict()  # name of a head or block: its tokens
        self._tokens = 0

    def hit(self, request: RequestSpec) -> int:
        """Leading tokens of the prompt that need not be computed; the last token always is."""
        if request.block_ids:
            found = 0
            for block in request.block_ids:
                if ("block", block) not in self._kept:
                    break
                self._kept.move_to_end(("block", block))
                found += self._block_tokens
        else:
            name = ("head", -1 if request.prefix_id is None else request.prefix_id)
            found = min(self._kept.get(name, 0), request.prefix_tokens)
            if found:
                self._kept.move_to_end(name)
        found -= found % self._granule
        return max(min(found, request.input_tokens - 1), 0)

    def add(self, request: RequestSpec) -> None:
        """The prompt was computed: what it shares with others is kept from now on."""
        for block in request.block_ids:
            self._keep(("block", block), self._block_tokens)
        if not request.block_ids and request.prefix_id is not None:
            self._keep(("head", request.prefix_id), request.prefix_tokens)

    def _keep(self, name: tuple[str, int], tokens: int) -> None:
        before = self._kept.pop(name, 0)
        self._kept[name] = max(before, tokens)
        self._tokens += self._kept[name] - before
        while self._capacity is not None and self._tokens > self._capacity:
            _, gone = self._kept.popitem(last=False)
            self._tokens -= gone


def shares_prefixes(workload: Workload) -> bool:
    return any(request.block_ids or request.prefix_id is not None for request in workload.requests)
