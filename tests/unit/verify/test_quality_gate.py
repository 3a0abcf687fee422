"""The quality gate on made-up evidence: figures by hand, rates as statistics, verdicts by preset."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from powerband.records.quality import Evidence, Preset, QualityAnswer, QualityPrompt, QualityTask, ScoredText
from powerband.records.value import Missing
from powerband.verify.bootstrap import mean_interval
from powerband.verify.divergence import position_divergence, text_difference
from powerband.verify.gate import Judged, judge_quality
from powerband.verify.limits import limits_for
from powerband.verify.worst import worst_prompts

GOOD = "```python\ndef f(x):\n    return x + 1\n```"
BAD = "```python\ndef f(x)\n    return x + 1\n```"


def scored(p: float, others: float = 0.1, positions: int = 50) -> ScoredText:
    """Every position: the text's token ``a`` with probability ``p``, one other listed, the rest not."""
    top = {"a": math.log(p), "b": math.log(others)}
    return ScoredText(tokens=("a",) * positions, logprobs=(math.log(p),) * positions, tops=(top,) * positions)


def made(scores: list[ScoredText], answers: list[str] | None = None, right: list[bool] | None = None) -> Evidence:
    texts = answers or ["fine"] * len(scores)
    judged: Sequence[bool | None] = right or [None] * len(texts)
    return Evidence(
        task="t",
        engine="e",
        answers=tuple(QualityAnswer(text=t, ended=True, right=r) for t, r in zip(texts, judged, strict=True)),
        answer_scores=tuple(scores),
        passage_scores=tuple(scores),
        seconds=1.0,
    )


def task(count: int, preset: Preset = "chat") -> QualityTask:
    return QualityTask(
        name=preset,
        preset=preset,
        prompts=tuple(QualityPrompt(prompt=f"p{k}") for k in range(count)),
        passages=("text",) * count,
        syntax="python" if preset in ("code", "chat") else "none",
    )


def noisy(rng: np.random.Generator, sd: float, count: int = 40, shift: float = 0.0) -> tuple[Evidence, Evidence]:
    """A reference and a candidate whose log probabilities differ by ``shift`` and by noise from text to text."""
    first, second = [], []
    for _ in range(count):
        p = float(np.clip(rng.beta(4, 4), 0.05, 0.85))
        moved = float(np.clip(p * math.exp(rng.normal(shift, sd)), 1e-6, 0.89))
        first.append(scored(p, 0.05))
        second.append(scored(moved, 0.05))
    return made(first), made(second)


def test_divergence_of_two_positions_by_hand() -> None:
    # Common: a. p = 0.6, q = 0.5; everything else as one: 0.4 against 0.5.
    reference, candidate = {"a": math.log(0.6), "c": math.log(0.1)}, {"a": math.log(0.5), "b": math.log(0.2)}
    expected = 0.6 * math.log(0.6 / 0.5) + 0.4 * math.log(0.4 / 0.5)
    assert position_divergence(reference, candidate) == pytest.approx(expected, rel=1e-12)
    assert position_divergence(reference, reference) == 0.0


def test_merged_tokens_never_raise_the_divergence() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        p, q = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(12))
        whole = float((p * np.log(p / q)).sum())
        kept = np.argsort(-p)[:5]
        partial = position_divergence(
            {str(k): math.log(p[k]) for k in kept}, {str(k): math.log(v) for k, v in enumerate(q)}
        )
        assert 0.0 <= partial <= whole + 1e-12


def test_perplexity_ratio_by_hand() -> None:
    # Probability 0.4 -> 0.32 at every position: the perplexity rises by 0.4 / 0.32 = 1.25, whatever the weights.
    found = judge_quality(task(3), made([scored(0.4)] * 3), made([scored(0.32)] * 3), None)
    metric = next(m for m in found.metrics if m.name == "perplexity_ratio")
    assert metric.value == pytest.approx(1.25)
    assert metric.interval is not None
    assert metric.interval.low == pytest.approx(1.25)
    assert found.verdict == "failed"
    assert "perplexity ratio 1.25" in found.reason


def test_other_tokens_are_not_compared() -> None:
    other = ScoredText(tokens=("z",) * 50, logprobs=(-1.0,) * 50, tops=({"z": -1.0},) * 50)
    assert text_difference(scored(0.4), other) is None
    found = judge_quality(task(2), made([scored(0.4)] * 2), made([other] * 2), None)
    assert found.verdict == "undecided"
    assert "different tokens" in found.reason


def test_without_probabilities_nothing_passes() -> None:
    bare = Evidence(
        task="t",
        engine="e",
        answers=(QualityAnswer(text="x", ended=True),),
        answer_scores=Missing(missing="no echo"),
        passage_scores=Missing(missing="no echo"),
        seconds=1.0,
    )
    found = judge_quality(task(1), bare, bare, None)
    assert found.verdict == "undecided"
    assert "no echo" in found.reason


def test_the_interval_holds_its_level_for_skewed_divergences() -> None:
    """Divergences per prompt are skewed; of 300 draws of 40 prompts about 90 % must hold the true mean."""
    rng = np.random.default_rng(7)
    true, held, above = math.exp(0.5 * 0.8**2), 0, 0
    for seed in range(300):
        values = rng.lognormal(0.0, 0.8, 40)
        _, interval = mean_interval((values * 50).tolist(), [50.0] * 40, seed=seed)
        held += interval.low <= true <= interval.high
        above += interval.high < true  # the side on which a bad candidate would slip through
    assert held / 300 >= 0.85
    assert above / 300 <= 0.09  # stated 5 %, three standard errors


def test_an_equal_candidate_passes_at_the_stated_rate() -> None:
    """Equal up to noise a tenth of the chat limits: at least 95 of 100 pass, and none fails."""
    rng = np.random.default_rng(3)
    verdicts = [judge_quality(task(40), *noisy(rng, 0.03), None).verdict for _ in range(100)]
    assert verdicts.count("passed") >= 95
    assert verdicts.count("failed") == 0


def test_a_candidate_on_the_limit_passes_in_at_most_its_stated_share() -> None:
    """A perplexity ratio of exactly 1.05: it may pass in 5 % of cases (9 % with the error of 300 draws)."""
    rng = np.random.default_rng(4)
    passed = 0
    for seed in range(300):
        sums = 50 * rng.normal(math.log(1.05), 0.08, 40)  # 40 texts of 50 positions
        _, interval = mean_interval(sums.tolist(), [50.0] * 40, transform=np.exp, seed=seed)
        passed += interval.high <= limits_for("chat")["perplexity_ratio"].most
    assert passed / 300 <= 0.09


def test_noise_of_the_reference_widens_what_is_allowed() -> None:
    reference, candidate = made([scored(0.4)] * 4), made([scored(0.37)] * 4)
    assert judge_quality(task(4), reference, candidate, None).verdict == "failed"
    again = made([scored(0.36)] * 4)
    found = judge_quality(task(4), reference, candidate, again)
    metric = next(m for m in found.metrics if m.name == "perplexity_ratio")
    assert metric.allowed == pytest.approx(0.4 / 0.36)
    assert metric.verdict == "passed"


def judged(preset: Preset, broken: int, count: int = 20) -> Judged:
    same = [scored(0.4)] * count
    return judge_quality(
        task(count, preset),
        made(same, [GOOD] * count),
        made(same, [BAD] * broken + [GOOD] * (count - broken)),
        None,
    )


def test_code_refuses_broken_syntax_that_chat_passes() -> None:
    assert judged("chat", 4).verdict == "passed"
    refused = judged("code", 4)
    assert refused.verdict == "failed"
    assert "broken syntax more 0.2" in refused.reason
    assert judged("code", 0).verdict == "passed"


def test_code_and_maths_are_stricter_than_chat_in_every_limit() -> None:
    wide, narrow = limits_for("chat"), limits_for("code")
    assert limits_for("maths") == narrow
    assert wide.keys() == narrow.keys()
    assert all(narrow[name].most <= wide[name].most for name in wide)
    assert all(limit.source for limit in (*wide.values(), *narrow.values()))


def test_published_quantisations_of_a_large_model_fall_where_the_seeds_put_them() -> None:
    """Llama 3 8B, llama.cpp's table: chat stands Q4_K_M and not Q4_0; code and maths stand Q6_K and not Q5_K_M."""
    ratio, divergence = "perplexity_ratio", "divergence"
    wide, narrow = limits_for("chat"), limits_for("code")
    assert wide[ratio].most > 1.02816
    assert wide[divergence].most > 0.031273
    assert wide[ratio].most < 6.700147 / 6.231636
    assert wide[divergence].most < 0.071940
    assert narrow[ratio].most > 1.00349
    assert 0.005452 < narrow[divergence].most < 0.010762


def test_fewer_right_answers_fail_maths() -> None:
    same = [scored(0.4)] * 20
    before = made(same, right=[True] * 15 + [False] * 5)
    worse = made(same, right=[True] * 9 + [False] * 11)
    assert judge_quality(task(20, "maths"), before, worse, None).verdict == "failed"
    assert judge_quality(task(20, "maths"), before, before, None).verdict == "passed"


def test_one_change_in_ten_keeps_an_interval_of_shares() -> None:
    """The number of draws of it is binomial(10, 0.1): 0 at 5 % from below, 3 at 5 % from above."""
    value, interval = mean_interval([1.0, *[0.0] * 9], [1.0] * 10, studentised=False)
    assert (value, interval.low) == (0.1, 0.0)
    assert interval.high == pytest.approx(0.3)


def test_one_flipped_token_makes_no_wide_noise_band() -> None:
    """One other first choice in 5 texts of 50 tokens: 0.4 %, and at most 3 of 250 with 5 % for that end."""
    same = scored(0.4)
    flipped = ScoredText(tokens=same.tokens, logprobs=same.logprobs, tops=({"a": -1.0, "b": -0.9}, *same.tops[1:]))
    reference = made([same] * 5)
    found = judge_quality(task(5), reference, made([scored(0.399)] * 5), made([flipped, *[same] * 4]))
    metric = next(m for m in found.metrics if m.name == "disagreement")
    assert metric.noise is not None
    assert 0.004 <= metric.noise <= 0.012
    assert metric.allowed == metric.limit


def test_none_of_twenty_is_not_none_for_certain() -> None:
    """0 of 20 leaves open up to 1 - 0.05 ** (1/20), 13.9 %, at 5 % for that end; it is no noise of the reference's."""
    found = judge_quality(task(20, "code"), *[made([scored(0.4)] * 20, [GOOD] * 20)] * 3)
    metric = next(m for m in found.metrics if m.name == "broken_syntax_more")
    assert metric.interval is not None
    assert metric.interval.high == pytest.approx(0.1391, abs=1e-4)
    assert metric.allowed == metric.limit == 0.02
    assert metric.verdict == "passed"


def test_the_worst_prompt_comes_first_with_its_reason() -> None:
    before = made([scored(0.4)] * 3, [GOOD, GOOD, "same"])
    after = made([scored(0.39), scored(0.2), scored(0.4)], [BAD, GOOD + " ", "same"])
    found = worst_prompts(task(3, "code"), before, after)
    assert [one.prompt for one in found] == ["p0", "p1"]
    assert "code parsed before" in found[0].why
    assert found[1].divergence == pytest.approx(0.4 * math.log(2) + 0.1 * 0 + 0.5 * math.log(0.5 / 0.7))
