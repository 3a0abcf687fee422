"""The fake model's probabilities: a function of the last two tokens, with an error that grows as the bits go."""

import math
import random
from typing import Any

_LIKELY = 48  # tokens with a probability to speak of
_SPREAD = 2.0  # standard deviation of their logits
_ERROR = {16: 0.0, 8: 0.005, 4: 0.8}  # standard deviation added to the logits


def next_logprobs(before: list[int], token: int, bits: int, vocab: int) -> dict[int, float]:
    """Logarithms of the probabilities after ``before``, of the likely tokens and of ``token``."""
    last = tuple(before[-2:])
    draw = random.Random(repr(last))
    tokens = [draw.randrange(vocab) for _ in range(_LIKELY)]
    logits = {one: draw.gauss(0.0, _SPREAD) for one in tokens}
    logits.setdefault(token, random.Random(repr((last, token))).gauss(-1.0, _SPREAD))
    error = random.Random(repr((last, bits)))
    logits = {one: value + error.gauss(0.0, 1.0) * _ERROR[bits] for one, value in logits.items()}
    total = math.log(sum(math.exp(value) for value in logits.values()))
    return {one: value - total for one, value in logits.items()}


def completion(before: list[int], forced: int, bits: int, vocab: int, top: int) -> dict[str, Any]:
    """The body of llama.cpp's /completion for one forced token with its probabilities."""
    found = next_logprobs(before, forced, bits, vocab)
    best = sorted(found.items(), key=lambda pair: -pair[1])[:top]
    listed = [{"id": one, "token": f" t{one}", "bytes": [], "logprob": value} for one, value in best]
    row = {"id": forced, "token": f" t{forced}", "bytes": [], "logprob": found[forced], "top_logprobs": listed}
    return {"content": f" t{forced}", "stop": True, "tokens_predicted": 1, "completion_probabilities": [row]}
