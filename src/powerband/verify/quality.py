"""Whether a change needs the quality gate: only knobs that alter the answers do."""

from collections.abc import Sequence

from powerband.records.config import EngineConfig, Knob
from powerband.records.verdict import QualityResult


def need_quality(before: EngineConfig, after: EngineConfig, knobs: Sequence[Knob]) -> QualityResult:
    """``not_needed``, or ``not_run`` naming the knobs for which answers must be compared before the change is kept.

    Going back to the naive value needs no gate. A change of model or engine always does: the answers are others'.
    """
    if before.model != after.model or before.engine != after.engine:
        return QualityResult(verdict="not_run", reason="another model or engine gives other answers")
    altered = []
    for knob in knobs:
        now = after.knobs.get(knob.name, knob.naive)
        if knob.numerics and now != before.knobs.get(knob.name, knob.naive) and now != knob.naive:
            altered.append(f"{knob.name}={now}")
    if altered:
        return QualityResult(verdict="not_run", reason=f"{', '.join(altered)} can change the answers")
    return QualityResult(verdict="not_needed", reason="no changed knob alters the answers")
