"""The step time folded into a few numbers, so that a simulation can ask for it millions of times."""

import math
from collections.abc import Sequence as SequenceOf

from powerband.simulate.scheduler import Speculation
from powerband.simulate.step_time import FACTORS, SMALL_BATCH, StepTime, padded


class Clock:
    """``StepTime.seconds`` with factors multiplied in; equal to it to rounding (tests/unit/simulate/test_clock.py).

    With ``speculation`` a step here is the share of a real step that gives one token to each decoding sequence: a real
    one gives ``tokens_per_step`` of them and takes as many times as long and as many prompt tokens.
    """

    __slots__ = (
        "_cap",
        "_capped_pair",
        "_context",
        "_decodes_s",
        "_draft_share",
        "_drafts",
        "_experts",
        "_few",
        "_gain",
        "_graph_tokens",
        "_hidden",
        "_idle_share",
        "_launch",
        "_leftover",
        "_overhead",
        "_pad",
        "_pair",
        "_passes",
        "_per_step",
        "_per_token",
        "_prefill_step",
        "_prompt_graph_tokens",
        "_sampled",
        "_sequence",
        "_single",
        "_single_s",
        "_sliding",
        "_state",
        "_tile",
        "_token",
        "_ubatch",
        "_weights",
        "_window",
        "front_request_s",
        "front_token_s",
        "request_s",
    )  # fmt: skip

    def __init__(self, step: StepTime, speculation: Speculation | None = None) -> None:
        t = step.terms
        self._gain = speculation.tokens_per_step if speculation else 1.0
        self._drafts = speculation.draft_tokens if speculation else 0
        self._draft_share = speculation.draft_share if speculation else 0.0
        overhead, weights, few, compute, sequence, context, pairs, communication, single, leftover, _, launch = (
            step.factors
        )
        self._overhead = overhead * t.overhead_s
        self._prefill_step = overhead * t.prefill_step_s
        self._weights = weights * t.weight_s
        self._experts = weights * t.expert_s
        self._idle_share = 1.0 - t.expert_share
        self._few = few * t.token_s
        self._token = compute * t.token_s
        self._sampled = compute * t.sampled_s
        self._sequence = sequence * t.sequence_s
        self._context = context * t.context_token_s
        self._sliding = context * t.sliding_token_s
        self._window = t.window_tokens
        self._state = context * t.state_s
        self._pair = pairs * t.pair_s
        self._capped_pair = pairs * t.capped_pair_s
        self._cap = t.cap_tokens
        self._per_step = communication * t.collective_s
        self._per_token = communication * t.collective_token_s
        self._hidden = 1.0 - t.overlap
        self._single = t.single_ratio
        alone = step.parts(sequences=1, context_tokens=0.0, prefill_tokens=0, pairs=0.0, sampled=1)
        self._single_s = single * alone[FACTORS.index("single")]
        self._tile = t.tile_tokens
        self._pad = t.pad_tokens
        self._leftover = leftover * t.token_s
        self._ubatch = t.ubatch_tokens
        self._launch = launch * t.launch_s
        self._graph_tokens, self._prompt_graph_tokens = t.graph_tokens, t.prompt_graph_tokens
        self._passes = (1.0 + self._drafts * self._draft_share) / self._gain  # in which each cached token is read
        self._decodes_s: dict[int, float] = {}  # pure decode steps over empty caches, by sequences
        self.front_request_s, self.front_token_s = t.front_request_s, t.front_token_s
        self.request_s = max(step.request_s - t.front_request_s, 0.0)  # beside what the front end is busy with it

    def mixed_s(self, sequences: int, context: float, prefill: int, pairs: float, prompts: int) -> float:
        """One step: ``sequences`` decode over ``context`` tokens, ``prefill`` prompt tokens end ``prompts`` prompts."""
        if not self._drafts or not sequences:
            return self._plain_s(sequences, context, prefill, pairs, prompts, 0)
        gain, drafts = self._gain, self._drafts
        real = self._plain_s(sequences, context, gain * prefill, gain * pairs, gain * prompts, drafts * sequences)
        if self._draft_share:
            real += drafts * self._draft_share * self._plain_s(sequences, context, 0, 0.0, 0, 0)
        return real / gain

    def _plain_s(
        self, sequences: int, context: float, prefill: float, pairs: float, prompts: float, guesses: int
    ) -> float:
        """One real step; ``guesses`` are tokens that the decoding sequences check beside their own."""
        tokens = sequences + prefill + guesses
        passes = 1 if tokens <= self._ubatch else -(-tokens // self._ubatch)
        weights = passes * self._weights
        if self._experts:
            weights += passes * self._experts * (1.0 - self._idle_share**tokens)
        compute = tokens * self._token + (sequences + prompts + guesses) * self._sampled
        if self._few:
            compute += tokens / (1.0 + tokens / SMALL_BATCH) * self._few
        if tokens == 1:
            weights *= self._single
            compute *= self._single
        core = weights + self._hidden * compute if weights >= compute else compute + self._hidden * weights
        if tokens == sequences == 1:
            core += self._single_s
        elif not prefill and self._tile > 1:
            core += (sequences + guesses) % self._tile * self._leftover
        if prefill:
            core += self._prefill_step + min(pairs, self._cap * prefill) * self._capped_pair
        total = (
            self._overhead
            + self._per_step
            + core
            + tokens * self._per_token
            + (sequences + prompts) * self._sequence
            + self._read_s(sequences, context)
            + sequences * self._state
            + pairs * self._pair
        )
        in_graph = tokens <= (self._prompt_graph_tokens if prefill else self._graph_tokens)
        return total if in_graph else max(total, self._launch)

    def _read_s(self, sequences: int, context: float) -> float:
        """What one pass takes to read the caches."""
        if self._pad > 1:
            context = padded(context, sequences, self._pad)
        read_s = context * self._context
        return read_s + min(context, sequences * self._window) * self._sliding if self._sliding else read_s

    def split_mixed_s(self, rows: SequenceOf[int], context: float, prefill: int, pairs: float, prompts: int) -> float:
        """As ``mixed_s`` where each of ``rows`` sequences, and the prompts, have a pass of their own."""
        return self.decode_rows_s(rows, context)[0] + self.mixed_s(0, 0.0, prefill, pairs, prompts)

    def decode_rows_s(self, rows: SequenceOf[int], context: float) -> tuple[float, float]:
        """As ``decode_s`` with a pass for each of ``rows`` sequences."""
        total = sum(rows)
        parts = [self.decode_s(row, context * row / total) for row in rows]
        return sum(first for first, _ in parts), sum(growth for _, growth in parts)

    def decode_s(self, sequences: int, context: float) -> tuple[float, float]:
        """The next pure decode step, and how much longer each one after it is (contexts grow by one token each; one
        that counts in multiples is taken as it is now)."""
        empty_s = self._decodes_s.get(sequences)
        if empty_s is None:
            empty_s = self._decodes_s[sequences] = self.mixed_s(sequences, 0.0, 0, 0.0, 0)
        read_s = self._read_s(sequences, context)
        growth_s = sequences * self._context
        if self._pad > 1:
            growth_s = 0.0
        elif self._sliding:
            growth_s = self._read_s(sequences, context + sequences) - read_s
        if sequences <= self._graph_tokens:
            return empty_s + self._passes * read_s, self._passes * growth_s
        # Launched kernel by kernel, which may take longer; the reads of one stretch do not outgrow that by much.
        first_s = self.mixed_s(sequences, context, 0, 0.0, 0)
        return first_s, self._passes * growth_s if first_s > self._launch else 0.0


def steps_until(wait_s: float, first_s: float, growth_s: float) -> int:
    """The fewest steps, at least 1, that take ``wait_s``: k * first + growth * k * (k - 1) / 2 >= wait."""
    if growth_s <= 0:
        steps = math.ceil(wait_s / first_s - 1e-9) if first_s > 0 else 1
    else:
        b = first_s - growth_s / 2
        steps = math.ceil((math.sqrt(max(b * b + 2 * growth_s * wait_s, 0.0)) - b) / growth_s - 1e-9)
    return max(steps, 1)
