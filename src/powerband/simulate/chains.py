"""Steps behind a front end of its own, whose tokens come late and uneven: timed one by one only far from prompts."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powerband.records.request import RequestTrace
from powerband.records.units import NS_PER_S
from powerband.simulate.observed import WINDOW_STEPS, Array, Content, Observed, Timeline
from powerband.simulate.scheduler import Limits

# A front end that is busy with a new request hands out the tokens of a step late, by up to this many steps, and those
# of the next ones the sooner; a first token comes later still. Times so near to a prompt are only used added up.
NEAR_STEPS = 2


def observe_chains(timeline: Timeline, traces: Sequence[RequestTrace], limits: Limits) -> list[Observed]:
    """Steps in a row, seen by sequences that take over from each other: alone far from prompts, added up near them."""
    rows: list[Observed] = []
    for chain in _chains(traces):
        low, high = chain[:, 0], chain[:, 1]
        tokens = chain[:, 2].astype(np.int64)
        middle = (low + high) / 2
        following = np.append(middle[1:], high[-1] + (high[-1] - middle[-1]))
        sequences = timeline.decoding(middle).astype(np.int64)
        context = timeline.context(middle)
        prompts = _Prompts(timeline, traces, middle, following)
        held = prompts.spread(sequences, limits.most_prompt_tokens)
        busy = np.array([bool(chunks) for chunks in held])
        near = np.convolve(busy, np.ones(2 * NEAR_STEPS + 1), mode="same")[: len(busy)] > 0
        steady = (tokens == 1) | (timeline.decoding(low + 1) == timeline.decoding(high - 1))
        usable = (sequences > 0) & (high > low) & (near | steady)
        usable[: prompts.cut] = False
        start = 0
        while start < len(low):
            end = start + 1
            while (
                end < len(low)
                and end - start < WINDOW_STEPS
                and usable[end] == usable[start]
                and near[end] == near[start]
                and (near[start] or sequences[end] == sequences[start])
            ):
                end += 1
            if usable[start]:
                contents = [
                    one
                    for k in range(start, end)
                    for one in _contents(int(tokens[k]), int(sequences[k]), context[k], held[k])
                ]
                rows.append(_added_up(float((high - low)[start:end].sum()) / NS_PER_S, contents))
            start = end
    return rows


def _contents(tokens: int, sequences: int, context: float, chunks: list[tuple[int, int, bool]]) -> list[Content]:
    """One gap: the step with the prompts' chunks (tokens, tokens before them, whether the last), and those without."""
    found = []
    plain = tokens - 1 if chunks else tokens
    if plain:
        found.append(Content(steps=plain, sequences=sequences, context_tokens=context))
    if chunks:
        found.append(
            Content(
                steps=1,
                sequences=sequences,
                context_tokens=context,
                prefill_tokens=sum(take for take, _, _ in chunks),
                pairs=sum(take * (before + (take + 1) / 2) for take, before, _ in chunks),
                prompts=sum(last for _, _, last in chunks),
            )
        )
    return found


def _added_up(seconds: float, contents: list[Content]) -> Observed:
    """Equal steps as one content, so that a long decode is one row and not many."""
    merged: list[Content] = []
    for one in contents:
        last = merged[-1] if merged else None
        if last is not None and not one.prefill_tokens and not last.prefill_tokens and one.sequences == last.sequences:
            steps = last.steps + one.steps
            context = (last.steps * last.context_tokens + one.steps * one.context_tokens) / steps
            merged[-1] = Content(steps=steps, sequences=one.sequences, context_tokens=context)
        else:
            merged.append(one)
    steps = sum(one.steps for one in merged)
    return Observed(
        seconds=seconds,
        steps=steps,
        sequences=round(sum(one.steps * one.sequences for one in merged) / steps),
        context_tokens=sum(one.steps * one.context_tokens for one in merged) / steps,
        prefill_tokens=sum(one.prefill_tokens for one in merged),
        contents=tuple(merged),
    )


def _chains(traces: Sequence[RequestTrace]) -> list[Array]:
    """Rows of (start, end, tokens) of steps that follow each other, each seen once, by as few sequences as cover them.

    Where one sequence ends another takes over at the same step, so that what its server held back is made up for.
    """
    streams = sorted((t for t in traces if len(t.t_chunks_ns) > 1), key=lambda t: t.t_chunks_ns[0])
    chains: list[list[Array]] = []
    place, reached = 0, -math.inf
    best: RequestTrace | None = None  # of those that had begun by ``reached``, the one that goes on longest
    while True:
        while place < len(streams) and streams[place].t_chunks_ns[0] <= reached:
            if best is None or streams[place].t_chunks_ns[-1] > best.t_chunks_ns[-1]:
                best = streams[place]
            place += 1
        fresh = best is None or best.t_chunks_ns[-1] <= reached
        if fresh:
            if place == len(streams):
                break
            best = streams[place]
            place += 1
        assert best is not None
        times = np.array(best.t_chunks_ns, dtype=np.float64)
        tokens = np.array(best.chunk_tokens[1:], dtype=np.float64)
        first = 0 if fresh else int(np.argmin(np.abs(times - reached)))
        part = np.stack([times[first:-1], times[first + 1 :], tokens[first:]], axis=1)
        if fresh:
            chains.append([])
        chains[-1].append(part)
        reached = times[-1]
    return [np.concatenate(parts) for parts in chains]


class _Prompts:
    """Which prompts gave their first token in which gap, and what of them each step held."""

    def __init__(self, timeline: Timeline, traces: Sequence[RequestTrace], low: Array, high: Array) -> None:
        order = np.argsort(timeline.first)
        firsts = timeline.first[order]
        self.cut = 0  # gaps before this may hold a part of a prompt whose rest came before the chain
        self._inputs: list[list[int]] = []
        starts, ends = np.searchsorted(firsts, low), np.searchsorted(firsts, high)
        # Chains may overlap by a moment where one sequence takes over: no prompt is counted twice.
        seen = 0
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True):
            self._inputs.append([traces[order[k]].input_tokens for k in range(max(a, seen), b)])
            seen = max(seen, b)

    def spread(self, sequences: NDArray[np.int64], budget: int) -> list[list[tuple[int, int, bool]]]:
        """Chunks of each step: the last one with the first token, and what exceeds the budget in the steps before."""
        held: list[list[tuple[int, int, bool]]] = [[] for _ in self._inputs]
        room = [max(budget - int(n), 1) for n in sequences]
        for gap, inputs in enumerate(self._inputs):
            for size in inputs:
                left, step, last = size, gap, True
                while left > 0:
                    if step < 0:
                        self.cut = max(self.cut, gap + 1)
                        break
                    take = min(left, room[step])
                    if take:
                        left -= take
                        room[step] -= take
                        held[step].append((take, left, last))
                        last = False
                    step -= 1
        return held
