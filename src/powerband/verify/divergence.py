"""How far two engines' next-token distributions differ along the same text."""

import math
from dataclasses import dataclass

from powerband.records.quality import ScoredText

_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class TextDifference:
    """Sums over the positions of one text that both engines scored."""

    positions: int
    log_ratio: float  # of the reference's probability to the candidate's, for the text's own tokens
    divergence: float  # nats
    different: int  # positions with another first choice


def text_difference(reference: ScoredText, candidate: ScoredText) -> TextDifference | None:
    """Compare position by position; None where the two were not given the same tokens."""
    if reference.tokens != candidate.tokens:
        return None
    positions, different = 0, 0
    log_ratio, divergence = 0.0, 0.0
    rows = zip(reference.logprobs, candidate.logprobs, reference.tops, candidate.tops, strict=True)
    for before, after, top_before, top_after in rows:
        if before is None or after is None or not top_before or not top_after:
            continue
        positions += 1
        log_ratio += before - after
        divergence += position_divergence(top_before, top_after)
        different += first(top_before) != first(top_after)
    return TextDifference(positions, log_ratio, divergence, different)


def position_divergence(reference: dict[str, float], candidate: dict[str, float]) -> float:
    """Kullback-Leibler divergence, in nats, of two distributions of which only the likeliest tokens are known.

    Tokens listed by both count one by one, all others as one: merging outcomes can only lower a divergence, so this is
    a lower bound, and a close one while the common tokens hold most of the probability.
    """
    total, p_rest, q_rest = 0.0, 1.0, 1.0
    for token, log_p in reference.items():
        log_q = candidate.get(token)
        if log_q is None:
            continue
        p = math.exp(log_p)
        total += p * (log_p - log_q)
        p_rest -= p
        q_rest -= math.exp(log_q)
    if p_rest > _TINY:
        total += p_rest * (math.log(p_rest) - math.log(max(q_rest, _TINY)))
    return max(total, 0.0)


def first(top: dict[str, float]) -> str:
    """The likeliest token; of equals the one that sorts first, so that a tie is no disagreement."""
    best = max(top.values())
    return min(token for token, value in top.items() if value == best)
