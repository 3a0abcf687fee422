"""How tests of a diagnosis read on the screen."""

from powerband.locate.proof import apply_proofs
from powerband.records.finding import Cause, Diagnosis, Finding, Proof, Share, Status
from powerband.records.value import Interval
from powerband.report.diagnosis import render_diagnosis


def proof(cause: Cause, status: Status, test: str) -> Proof:
    return Proof(
        test=test, cause=cause, change="slots 1 -> 8", metric="mean request time in s", before=2.0, after=1.0, gain=2.0,
        interval=Interval(low=1.9, high=2.1), status=status, reason=f"removing it brought 2.00x by {test}",
    )  # fmt: skip


def test_a_proved_finding_shows_its_test_once_and_the_others_below() -> None:
    finding = Finding(cause="no_batching", share=0.6, evidence="never more than 1", remedy="more slots", test="sweep")
    plain = Diagnosis(
        sources=("request timings",),
        window_s=2.0,
        breakdown=(Share(name="decode", seconds=2.0, share=1.0),),
        verdict="no_batching",
        findings=(finding,),
        reason=finding.evidence,
    )
    proofs = [proof("no_batching", "confirmed", "more seats"), proof("tokenizer_bound", "refuted", "text")]
    page = render_diagnosis(apply_proofs(plain, proofs))
    assert page.startswith("no batching: 60.0 % of the window\n")
    assert "confirmed" in page
    assert page.count("more seats, slots 1 -> 8: removing it brought 2.00x by more seats") == 1
    assert "Test of tokenizer bound (text): refuted; removing it brought 2.00x by text" in page
    assert "proof" not in render_diagnosis(plain)


def test_a_diagnosis_of_stated_facts_has_no_bars() -> None:
    stated = Diagnosis(sources=("stated facts",), window_s=0.0, breakdown=(), verdict="undecided", findings=())
    assert "wall time" not in render_diagnosis(stated)
