"""Pauses that no prompt explains are found in hand-made token streams, and cut out of the clock."""

import msgspec
import pytest

from powerband.locate.diagnose import diagnose
from powerband.locate.pauses import Pause, cut_pauses, find_pauses
from powerband.locate.view import build_view
from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.sample import EngineSample
from powerband.records.value import Missing
from powerband.records.workload import Workload

MS = 1_000_000


def run_of(*requests: tuple[int, int, list[int]]) -> Run:
    """(sent, prompt tokens, arrivals) of each request, in ms."""
    traces = tuple(
        RequestTrace(
            index=k,
            status="ok",
            input_tokens=tokens,
            output_tokens_asked=len(chunks),
            t_sched_ns=sent * MS,
            t_send_ns=sent * MS,
            t_end_ns=chunks[-1] * MS,
            t_chunks_ns=tuple(t * MS for t in chunks),
            chunk_tokens=(1,) * len(chunks),
        )
        for k, (sent, tokens, chunks) in enumerate(requests)
    )
    return Run(
        run_id="hand",
        basis="measured",
        config=EngineConfig(engine="hand", model="hand"),
        effective=Missing(missing="-"),
        workload=Workload(requests=(), source="hand"),
        traces=traces,
        end_ns=max(trace.t_end_ns or 0 for trace in traces),
    )


def answer(sent: int, *, wait: int = 10, tokens: int = 10, hole: int = 0) -> tuple[int, int, list[int]]:
    """20 tokens 10 ms apart, the first after ``wait``; ``hole`` more ms before the eleventh."""
    return sent, tokens, [sent + wait + 10 * k + (hole if k >= 10 else 0) for k in range(20)]


# Six requests one after the other, 300 ms apart; the fourth stands still for 1,000 ms more, and the rest come later.
STOPPED = run_of(*(answer(300 * k) for k in range(3)), answer(900, hole=1000), answer(2200), answer(2500))


def test_a_stream_that_stands_still_is_a_pause_and_its_usual_step_is_kept() -> None:
    # 900 + 10 + 90 is its tenth token; the next comes 1,010 ms later instead of 10.
    assert find_pauses(build_view(STOPPED)) == [Pause(1000 * MS, 2010 * MS, 10 * MS)]


def test_a_pause_is_neither_prefill_nor_decode_and_the_parts_still_sum() -> None:
    found = diagnose(STOPPED)
    parts = {part.name: part.seconds for part in found.breakdown}
    # 6 x 10 ms to first tokens, 6 x 190 ms of decoding, 5 x 100 ms between requests, and the pause.
    assert parts["prefill"] == pytest.approx(0.06)
    assert parts["decode"] == pytest.approx(1.14)
    assert parts["no work"] == pytest.approx(0.5)
    assert parts["unseen"] == pytest.approx(1.0)
    assert found.window_s == pytest.approx(2.7)
    assert found.mean_request_s == pytest.approx((6 * 0.2 + 1.0) / 6)
    assert sum(part.seconds for part in found.request_breakdown) == pytest.approx(found.mean_request_s)
    (paused,) = [finding for finding in found.findings if "pause" in finding.evidence]
    assert (paused.cause, paused.of) == ("undecided", "window")
    assert paused.share == pytest.approx(1.0 / 2.7)
    assert not any("pause" in note for note in found.notes)


def test_a_small_pause_is_a_note() -> None:
    """1,000 of 12,900 ms are below a tenth, and no finding."""
    rows = [answer(300 * k) for k in range(3)]
    found = diagnose(run_of(*rows, answer(900, hole=1000), *(answer(2200 + 300 * k) for k in range(36))))
    assert found.window_s == pytest.approx(2.2 + 35 * 0.3 + 0.2)
    assert not any("pause" in finding.evidence for finding in found.findings)
    assert any(note.startswith("left out: 1 pause of 1.01 s without a token") for note in found.notes)


def test_a_first_token_that_is_late_once_is_a_pause() -> None:
    """Ten prompts of equal length: nine take 50 ms and the first, for which kernels are compiled, 1,050."""
    first = [answer(0, wait=1050), *(answer(1000 + 300 * k, wait=50) for k in range(1, 10))]
    assert find_pauses(build_view(run_of(*first))) == [Pause(0, 1050 * MS, 50 * MS)]


def test_a_long_prompt_is_no_pause() -> None:
    """Nothing in the run says what a prompt of 1,000 tokens takes elsewhere."""
    rows = [answer(0, wait=1050, tokens=1000), *(answer(1000 + 300 * k, wait=50) for k in range(1, 10))]
    assert find_pauses(build_view(run_of(*rows))) == []


def test_prompts_that_hold_up_a_stream_each_time_are_no_pauses() -> None:
    """A stream of 10 ms steps stands still for 400 ms at each of eight prompts, which come in the middle of a step."""
    steady, prompts, now = [], [], 0
    for _ in range(8):
        steady += [now + 10 * k for k in range(1, 21)]
        prompts.append((now + 195, 500, [now + 600, now + 610]))
        now += 600
    assert find_pauses(build_view(run_of((0, 10, steady), *prompts))) == []


def test_readings_in_a_pause_are_left_out_and_later_ones_move() -> None:
    pauses = [Pause(1000 * MS, 2010 * MS, 10 * MS)]
    samples = tuple(EngineSample(t_ns=t * MS, running=1.0) for t in (500, 1005, 1500, 2010, 2500))
    run = cut_pauses(msgspec.structs.replace(STOPPED, engine_samples=samples), pauses)
    assert [sample.t_ns // MS for sample in run.engine_samples] == [500, 1005, 1010, 1500]
    assert run.end_ns == 1700 * MS
    assert [trace.t_send_ns for trace in run.traces] == [300 * k * MS for k in range(4)] + [1200 * MS, 1500 * MS]
    assert [t // MS for t in run.traces[3].t_chunks_ns] == [910 + 10 * k for k in range(20)]


def test_two_pauses_far_apart_are_cut_each() -> None:
    rows = [answer(0, hole=500), *(answer(700 + 300 * k) for k in range(4)), answer(2000, hole=700)]
    run = run_of(*rows)
    found = find_pauses(build_view(run))
    assert [pause.cut_ns // MS for pause in found] == [500, 700]
    assert cut_pauses(run, found).end_ns == run.end_ns - 1200 * MS
