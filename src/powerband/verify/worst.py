"""The prompts on which two engines differ most, for a person to judge."""

from powerband.records.quality import Evidence, QualityTask, WorstPrompt
from powerband.records.value import Missing
from powerband.verify.answers import is_repetitive
from powerband.verify.divergence import TextDifference
from powerband.verify.gate import broken, differences

MOST = 5


def worst_prompts(task: QualityTask, reference: Evidence, candidate: Evidence, most: int = MOST) -> list[WorstPrompt]:
    """Side by side: first the answers that broke (wrong, unparsable, going in circles), then by divergence."""
    found = differences(reference.answer_scores, candidate.answer_scores)
    by_place = [None] * len(task.prompts) if isinstance(found, Missing) else found
    reasons = _reasons(task, reference, candidate)
    order = sorted(
        range(len(task.prompts)),
        key=lambda place: (bool(reasons[place]), _mean(by_place[place]) or 0.0),
        reverse=True,
    )
    return [
        WorstPrompt(
            prompt=task.prompts[place].prompt,
            reference=reference.answers[place].text,
            candidate=candidate.answers[place].text,
            divergence=_mean(by_place[place]),
            agreement=_agreement(by_place[place]),
            why=reasons[place] or "differs most in its token probabilities",
        )
        for place in order[:most]
        if reference.answers[place].text != candidate.answers[place].text or reasons[place]
    ]


def _mean(one: TextDifference | None) -> float | None:
    return one.divergence / one.positions if one is not None and one.positions else None


def _agreement(one: TextDifference | None) -> float | None:
    return 1 - one.different / one.positions if one is not None and one.positions else None


def _reasons(task: QualityTask, reference: Evidence, candidate: Evidence) -> list[str]:
    syntax = zip(broken(task, reference.answers), broken(task, candidate.answers), strict=True)
    rows = zip(reference.answers, candidate.answers, syntax, strict=True)
    return [
        ", ".join(
            text
            for text, worse in (
                ("right before, wrong now", before.right is True and after.right is False),
                ("code parsed before, does not now", code[0] == 0.0 and code[1] != 0.0),
                ("goes round in circles now", is_repetitive(after.text) and not is_repetitive(before.text)),
            )
            if worse
        )
        for before, after, code in rows
    ]
