"""The token times of one streamed answer: chunks as they come, reconciled with the server's own count at the end."""

from powerband.load.sse import Event

_MOST_TOKENS = 10_000_000  # no answer and no prompt has more


class Answer:
    """Collects (time, event) and settles how many tokens each chunk held.

    A chunk that names its count is believed. Else a chunk is one token, and the server's total decides what an empty
    text was: a token without visible text (half of a character), or none.
    """

    __slots__ = ("_said", "_texts", "_times", "_totals", "error", "finish", "prompt_tokens", "total_tokens")

    def __init__(self) -> None:
        self._times: list[int] = []
        self._texts: list[int] = []
        self._said: list[int | None] = []
        self._totals: list[int | None] = []
        self.total_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.finish: str | None = None
        self.error: str | None = None

    def add(self, t_ns: int, event: Event) -> None:
        total, prompt = _believed(event.total_tokens), _believed(event.prompt_tokens)
        if total is not None:
            self.total_tokens = total
        if prompt is not None:
            self.prompt_tokens = prompt
        if event.finish is not None:
            self.finish = event.finish
        if event.error is not None:
            self.error = event.error
        chars = event.text_chars
        if chars is None or (chars == 0 and event.finish is not None and not event.tokens):
            return  # a role, a usage report, or the closing chunk
        self._times.append(t_ns)
        self._texts.append(chars)
        self._said.append(event.tokens)
        self._totals.append(total)

    def seen(self) -> int:
        return len(self._times)

    def settle(self) -> tuple[tuple[int, ...], tuple[int, ...], str]:
        """Times and counts of the chunks that held tokens, and how the counts are known:

        ``said`` by each chunk, ``exact`` (one each, and the server's total agrees), ``spread`` (the total shared over
        chunks by length of text), ``unchecked`` (the server gave no total) or ``fewer`` (the server counts fewer
        tokens than there were chunks).
        """
        counts, how = self._counts()
        kept = [(t, n) for t, n in zip(self._times, counts, strict=True) if n > 0]
        return tuple(t for t, _ in kept), tuple(n for _, n in kept), how

    def _counts(self) -> tuple[list[int], str]:
        if self._said and all(n is not None for n in self._said):
            return [n or 0 for n in self._said], "said"
        if len(self._totals) > 1 and all(n is not None for n in self._totals):
            running = [n or 0 for n in self._totals]
            steps = [later - earlier for earlier, later in zip([0, *running], running, strict=False)]
            if all(step >= 0 for step in steps):
                return steps, "said"
        visible = [1 if chars else 0 for chars in self._texts]
        total = self.total_tokens
        if total is None or (total == 0 and any(visible)):
            return visible, "unchecked"
        if total == len(visible):
            return [1] * total, "exact"
        if total == sum(visible):
            return visible, "exact"
        if total > len(visible):
            return _spread(total, self._texts), "spread"
        if total > sum(visible):  # some empty chunks were tokens: the first ones, for want of a better guess
            spare = total - sum(visible)
            for i, one in enumerate(visible):
                if not one and spare:
                    visible[i], spare = 1, spare - 1
            return visible, "spread"
        return _thin(total, len(visible)), "fewer"


def _believed(said: int | None) -> int | None:
    """A server's count, where it can be one."""
    return said if said is not None and 0 <= said <= _MOST_TOKENS else None


def share_out(total: int, chunks: int) -> list[int]:
    """``total`` tokens over chunks of which only the times are known."""
    return _spread(total, [1] * chunks) if total >= chunks else _thin(total, chunks)


def _spread(total: int, texts: list[int]) -> list[int]:
    """``total`` over chunks: one each, the rest by length of text (largest remainders)."""
    if not texts:
        return []
    spare, length = total - len(texts), sum(texts) or len(texts)
    weights = texts if sum(texts) else [1] * len(texts)
    shares = [spare * weight / length for weight in weights]
    counts = [1 + int(share) for share in shares]
    by_remainder = sorted(range(len(texts)), key=lambda i: int(shares[i]) - shares[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _thin(total: int, chunks: int) -> list[int]:
    """Fewer tokens than chunks: tokens at evenly spaced chunks, the first and the last among them."""
    counts = [0] * chunks
    for k in range(total):
        counts[round(k * (chunks - 1) / (total - 1)) if total > 1 else 0] = 1
    return counts
