"""Which way to spread a model over cards: tensor parallelism against replicas, by simulation of each split.

A split's replicas share nothing but the traffic, which is dealt to them in turn; under a closed loop each gets its part
of the clients. Doubt is drawn jointly: the same factors for every split, so that a common error cancels in comparisons.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from powerband.records.config import TENSOR_KNOB, EngineConfig
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.parallel import Communication, ParallelPlan, Split, SplitFigures
from powerband.records.rounds import Objective
from powerband.records.slo import Slo
from powerband.records.value import Interval, Record
from powerband.records.workload import Workload
from powerband.simulate.all_reduce import all_reduce_s, link_cost, message_bytes
from powerband.simulate.choose_split import Tried, choose, proof, with_wins
from powerband.simulate.communication import communication_share, draw_factors, interval_of, judge_share
from powerband.simulate.figures import Figures, simulate_figures
from powerband.simulate.predict import mean_parts
from powerband.simulate.replicas import deal
from powerband.simulate.scheduler import Limits, limits_of
from powerband.simulate.step_time import FACTORS, StepTime

TENSOR_SIZES = (1, 2, 4, 8)
DRAWS = 16  # step times tried for each split beside the expected one
_COMMUNICATION = FACTORS.index("communication")


class Memory(Record):
    """What the ledger says of one replica: whether it fits, what its cache holds, and what is short."""

    fits: bool
    kv_tokens: int | None
    shortage: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be spread over ``cards`` devices; ``memory_of(config, ranks)`` asks the ledger."""

    model: ModelSpec
    device: DeviceSpec
    config: EngineConfig
    cards: int
    workload: Workload
    memory_of: Callable[[EngineConfig, int], Memory]
    slo: Slo | None = None
    deadline_s: float | None = None

    @property
    def objective(self) -> Objective:
        return "output_tokens_per_s" if self.slo is None else "goodput_per_s"


def plan_parallel(question: Question, step_time: StepTime) -> ParallelPlan:
    """Every split of the cards into TP 1, 2, 4 or 8 and replicas, the one to take first.

    Raises RequestError for an engine without tensor parallelism and for fewer than two cards.
    """
    engine = question.config.engine
    if engine not in TENSOR_KNOB:
        raise RequestError(
            f"engine {engine!r} splits no layer over cards", hint="plan with one of " + ", ".join(sorted(TENSOR_KNOB))
        )
    if not 2 <= question.cards <= 64:
        raise RequestError(f"{question.cards} card(s) cannot be planned", hint="say how many: --count 2 to 64")
    tried = with_wins([_try(question, step_time, tensor) for tensor in _sizes(question)])
    chosen, reason = choose(tried, question.objective)
    ranked = sorted(tried, key=lambda one: (one.split.name != chosen, one.split.figures is None, -one.expected))
    cost = link_cost(question.device)
    return ParallelPlan(
        model=question.model.name,
        device=question.device.name,
        cards=question.cards,
        link=f"{cost.name}: {cost.latency_s * 1e6:.3g} us and {cost.bytes_per_s / 1e9:.3g} GB/s an all-reduce",
        step_basis=step_time.basis,
        splits=tuple(one.split for one in ranked),
        chosen=chosen,
        reason=reason,
        proof=proof(ranked, chosen),
        notes=("traffic is dealt to the replicas in turn; a router that sees their load does a little better",),
    )


def _sizes(question: Question) -> list[int]:
    """The tensor sizes that divide the cards and the attention heads."""
    return [n for n in TENSOR_SIZES if question.cards % n == 0 and not question.model.refuses_split(n)]


def _try(question: Question, step_time: StepTime, tensor: int) -> Tried:
    config = question.config.replace(**{TENSOR_KNOB[question.config.engine]: tensor})
    memory = question.memory_of(config, tensor)
    split = Split(
        tensor=tensor,
        replicas=question.cards // tensor,
        config=config,
        kv_tokens=memory.kv_tokens,
        shortage=memory.shortage,
    )
    if not memory.fits:
        return Tried(split=split)
    limits = limits_of(config, memory.kv_tokens, question.model)
    reason = limits.refuses_all(question.workload)
    if reason:
        return Tried(split=msgspec.structs.replace(split, shortage=reason))
    part, busy = deal(question.workload, split.replicas)

    def run(step: StepTime) -> Figures:
        return simulate_figures(part, step, limits, slo=question.slo, deadline_s=question.deadline_s)

    step = step_time.at(config)
    figures = run(step)
    drawn = draw_factors(step, DRAWS)
    found = [run(one) for one in drawn]
    shares = [communication_share(one, mean_parts(one, each, limits)) for one, each in zip(drawn, found, strict=True)]
    summary = _summary(question, step, figures, limits, tensor)
    summary = msgspec.structs.replace(
        summary,
        output_tokens_per_s=busy * figures.output_tokens_per_s,
        interval=interval_of([busy * each.output_tokens_per_s for each in found]),
        goodput_per_s=None if figures.goodput_per_s is None else busy * figures.goodput_per_s,
        communication=msgspec.structs.replace(summary.communication, interval=interval_of(shares)),
    )
    holds = None if question.slo is None else (figures.attainment or 0.0) >= question.slo.attainment
    return Tried(
        split=msgspec.structs.replace(split, figures=summary, holds=holds),
        expected=busy * figures.objective(question.objective),
        drawn=tuple(busy * each.objective(question.objective) for each in found),
    )


def _summary(question: Question, step: StepTime, figures: Figures, limits: Limits, tensor: int) -> SplitFigures:
    """One replica's steps and latencies; the interval and what all replicas do together is filled in by the caller."""
    batch = max(1, round(figures.batch))
    decode = step.parts(
        sequences=batch, context_tokens=batch * figures.mean_context, prefill_tokens=0, pairs=0.0, sampled=batch
    )
    prompt = max(1, min(limits.most_prompt_tokens, round(batch * figures.mean_prompt)))
    prefill = step.parts(
        sequences=0, context_tokens=0.0, prefill_tokens=prompt, pairs=prompt * figures.mean_prompt / 2, sampled=1
    )
    share = communication_share(step, mean_parts(step, figures, limits))
    one = all_reduce_s(message_bytes(question.model, batch), tensor, link_cost(question.device))
    return SplitFigures(
        output_tokens_per_s=figures.output_tokens_per_s,
        interval=interval_of([figures.output_tokens_per_s]),
        decode_step_s=_seconds(step, decode),
        prefill_step_s=_seconds(step, prefill),
        all_reduce_s=step.factors[_COMMUNICATION] * one,
        batch=figures.batch,
        communication=Communication(
            decode=communication_share(step, decode),
            prefill=communication_share(step, prefill),
            run=share,
            interval=interval_of([share]),
        ),
        attainment=figures.attainment,
        ttft_p50_s=figures.ttft_p50_s,
        ttft_p99_s=figures.ttft_p99_s,
        tpot_p50_s=figures.tpot_p50_s,
        tpot_p99_s=figures.tpot_p99_s,
    )


def _seconds(step: StepTime, parts: tuple[float, ...]) -> float:
    return sum(factor * part for factor, part in zip(step.factors, parts, strict=True))


def confirm(
    predicted: ParallelPlan, measured: ParallelPlan, shares: dict[int, tuple[float, Interval]], source: str
) -> ParallelPlan:
    """``measured`` with a verdict on each predicted share, by tensor size, and on the choice."""
    before = {split.tensor: split.figures.communication for split in predicted.splits if split.figures is not None}
    verdicts = tuple(
        judge_share(tensor, (before[tensor].run, before[tensor].interval), found, source)
        for tensor, found in sorted(shares.items())
        if tensor in before
    )
    same = predicted.chosen == measured.chosen
    said = (
        f"the measurement keeps the choice of {measured.chosen}"
        if same
        else (f"predicted was {predicted.chosen}; the measurement overturns it")
    )
    return msgspec.structs.replace(measured, verdicts=verdicts, reason=f"{said}: {measured.reason}")


def shares_of(plan: ParallelPlan) -> dict[int, tuple[float, Interval]]:
    """The communication share of the run by tensor size, for splits that fit and communicate."""
    return {
        split.tensor: (split.figures.communication.run, split.figures.communication.interval)
        for split in plan.splits
        if split.figures is not None and split.tensor > 1
    }
