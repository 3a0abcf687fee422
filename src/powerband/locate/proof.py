"""What a test says of a cause, and how a diagnosis reads once tests were run.

Removing a real cause must pay: a finding that claims a share s of the time predicts that the time falls by up to s. A
quarter of that, and 5 % at least, is asked for with the whole interval: then the cause is confirmed. Where the whole
interval lies below, it is refuted; between the two it stays suspected, and the reason says how far the test went.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from powerband.records.finding import Cause, Diagnosis, Finding, Proof, Status
from powerband.records.units import percent
from powerband.records.value import Interval, Missing

_PART_ASKED, _LEAST_GAIN = 0.25, 1.05
# Under twice the load an idle engine answers as before, give or take what noise and a little sharing cost.
_UNCHANGED = 1.25
# Where more requests at once bring less than this in throughput, they are served one at a time.
_NO_GAIN, _SOME_GAIN = 1.15, 1.3
_HALF = 0.5
# Half the prompt halves prefill; what else is in a first token (a step, the network) keeps it from all of that.
_HALVED_GAIN = 1.4
# Causes that lengthen requests by themselves; that a sweep finds decode bound by memory says nothing about the load.
_ADDED: tuple[Cause, ...] = ("tokenizer_bound",)


@dataclass(frozen=True, slots=True)
class Level:
    """Decoding at one concurrency, one value a round: seconds between tokens, output tokens a second."""

    sequences: int
    tpot_s: tuple[float, ...]
    tokens_per_s: tuple[float, ...]


def needed_gain(share: float) -> float:
    """The gain that removing a cause of this share must bring at least."""
    return max(_LEAST_GAIN, 1 / (1 - _PART_ASKED * min(max(share, 0.0), 1.0)))


def judge_removal(share: float, gain: float, interval: Interval | Missing) -> tuple[Status, str]:
    """Confirmed, refuted or still open, from what taking the cause away brought."""
    needed = needed_gain(share)
    if isinstance(interval, Missing):
        return "suspected", f"removing it brought {gain:.2f}x, without an interval: {interval.missing}"
    brought = f"removing it brought {gain:.2f}x ({interval.low:.2f} to {interval.high:.2f})"
    if interval.low >= needed:
        return "confirmed", f"{brought}, of which {needed:.2f}x was asked"
    if interval.high < needed:
        return "refuted", f"{brought}, less than the {needed:.2f}x that a cause of this size would bring"
    return "suspected", f"{brought}: too wide to say whether it is the {needed:.2f}x asked"


def judge_unchanged(ratio: float, interval: Interval | Missing) -> tuple[Status, str]:
    """An idle engine keeps its request time when the load doubles; ``ratio`` is that time over the time before."""
    if isinstance(interval, Missing):
        return "suspected", f"at twice the load requests take {ratio:.2f}x as long, without an interval"
    took = f"at twice the load requests take {ratio:.2f}x as long ({interval.low:.2f} to {interval.high:.2f})"
    if interval.high < _UNCHANGED:
        return "confirmed", took
    if interval.low >= _UNCHANGED:
        return "refuted", f"{took}: it had no room to spare"
    return "suspected", f"{took}: too wide to say"


def judge_halved(gain: float, interval: Interval | Missing) -> tuple[Status, str]:
    """Prefill that computes is done in half the time for half the prompt."""
    if isinstance(interval, Missing):
        return "suspected", f"half the prompt brought {gain:.2f}x, without an interval"
    brought = f"first tokens of half the prompt come {gain:.2f}x as fast ({interval.low:.2f} to {interval.high:.2f})"
    if interval.low >= _HALVED_GAIN:
        return "confirmed", brought
    if interval.high < _HALVED_GAIN:
        return "refuted", f"{brought}: most of that time does not depend on the prompt"
    return "suspected", f"{brought}: too wide to say"


def growing_share(few: Level, many: Level, k: int) -> float:
    """Of a step of round ``k`` at the larger concurrency, the part that grows with the sequences."""
    slope = (many.tpot_s[k] - few.tpot_s[k]) / max(many.sequences - few.sequences, 1)
    return min(max(slope * many.sequences / many.tpot_s[k], 0.0), 1.0) if many.tpot_s[k] > 0 else 0.0


def judge_sweep(cause: Cause, levels: Sequence[Level], interval: Interval | Missing) -> tuple[Status, str]:
    """What a batch sweep says of ``cause``; ``interval`` is that of the growing share, or of the throughput's gain.

    no_batching: throughput stays when more requests are sent at once. memory_bandwidth_bound: less than half of a step
    grows with the sequences; compute_bound: more than half does.
    """
    few, many = levels[0], levels[-1]
    shape = ", ".join(
        f"{level.sequences}: {_mean(level.tpot_s) * 1e3:.3g} ms a token, {_mean(level.tokens_per_s):.3g} tokens/s"
        for level in levels
    )
    if isinstance(interval, Missing):
        return "suspected", f"{shape}; {interval.missing}"
    gain = _mean(many.tokens_per_s) / max(_mean(few.tokens_per_s), 1e-9)
    if cause == "no_batching":
        said = f"{many.sequences} at once bring {gain:.2f}x the tokens/s of one ({shape})"
        status: Status = "suspected"
        if interval.high < _NO_GAIN:
            status = "confirmed"
        elif interval.low > _SOME_GAIN:
            status = "refuted"
        return status, said
    middle = (interval.low + interval.high) / 2
    said = (
        f"{percent(middle)} ({percent(interval.low)} to {percent(interval.high)}) of a step at "
        f"{many.sequences} grows with them"
    )
    said += f" ({shape})"
    if gain < _NO_GAIN and interval.high < _HALF:  # the step did not grow because nothing shared it
        return "suspected", f"requests were served one at a time, so a step of several was never seen ({shape})"
    grows = interval.low >= _HALF
    flat = interval.high < _HALF
    wanted, other = (grows, flat) if cause == "compute_bound" else (flat, grows)
    return "confirmed" if wanted else "refuted" if other else "suspected", said


def apply_proofs(diagnosis: Diagnosis, proofs: Sequence[Proof]) -> Diagnosis:
    """The diagnosis with each finding's status, its order and verdict as the tests leave them.

    Refuted findings go last; a cause that a test confirmed and no rule had found is added with the share that its
    removal took away.
    """
    findings = [_proved(finding, proofs) for finding in diagnosis.findings]
    found = {finding.cause for finding in findings}
    unseen = [proof for proof in proofs if proof.status == "confirmed" and proof.cause in _ADDED]
    findings += [_found_by_test(proof) for proof in unseen if proof.cause not in found]
    order: dict[Status, int] = {"confirmed": 0, "suspected": 0, "refuted": 1}
    findings.sort(key=lambda finding: order[finding.status])
    first = findings[0]
    return msgspec.structs.replace(
        diagnosis, findings=tuple(findings), verdict=_verdict(first), reason=_reason(first), proofs=tuple(proofs)
    )


def _proved(finding: Finding, proofs: Sequence[Proof]) -> Finding:
    """A finding takes its decisive proof: of those that decided the one that changed most, else of all."""
    mine = [proof for proof in proofs if proof.cause == finding.cause]
    if not mine:
        return finding
    decided = [proof for proof in mine if proof.status != "suspected"] or mine
    most = max(decided, key=lambda proof: proof.gain)
    if len({proof.status for proof in decided}) > 1:  # tests that disagree prove nothing
        return msgspec.structs.replace(finding, status="suspected", proof=most)
    return msgspec.structs.replace(finding, status=most.status, proof=most)


def _found_by_test(proof: Proof) -> Finding:
    return Finding(
        cause=proof.cause,
        share=min(max(1 - 1 / max(proof.gain, 1.0), 0.0), 1.0),
        evidence=f"no rule had suspected it; {proof.reason}",
        remedy=f"keep the change that the test made: {proof.change}",
        test=proof.test,
        status="confirmed",
        of="request_time",
        proof=proof,
    )


def _verdict(first: Finding) -> Cause:
    return "undecided" if first.status == "refuted" else first.cause


def _reason(first: Finding) -> str:
    if first.status == "refuted":
        return f"the tests refuted every finding; the largest: {first.proof.reason if first.proof else first.evidence}"
    return first.evidence if first.proof is None else f"{first.evidence}; {first.status}: {first.proof.reason}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
