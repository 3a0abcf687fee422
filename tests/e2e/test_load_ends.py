"""How a run ends: what came as a whole counts, what was never due does not, and nothing happens afterwards."""

import time
from typing import Any

import pytest

from powerband.load.runner import run_load
from powerband.load.stop_rules import Stop
from powerband.load.target import Loaded, Target
from powerband.load.traffic import build_workload
from tests.support.scripted_server import END, HEAD, HOLD, Script, ScriptedServer, Seen, chunk, reply, token

DONE = b"data: [DONE]\n\n"
WHOLE = chunk(token()) + chunk(token("b", "length")) + chunk(DONE)


def load(server: ScriptedServer, spec: str, requests: int, deadline_s: float, **options: Any) -> Loaded:
    stop = options.pop("stop", None)
    workload = build_workload(spec, requests=requests)
    target = Target(server.url, "m", **options)
    return run_load(target, workload, t0_ns=time.monotonic_ns(), deadline_s=deadline_s, stop=stop)


def done_but_open(_: int, seen: Seen) -> Script:
    """The client waits 0.1 s for the end of the message, and the deadline of these tests comes in that time."""
    return [(0.45, HEAD + WHOLE), (0.0, HOLD)]


@pytest.mark.parametrize("spec", ["in=4,out=2,arrivals=burst", "in=4,out=2,concurrency=8"])
def test_an_answer_that_waits_for_its_last_bytes_at_the_deadline_is_whole(spec: str) -> None:
    with ScriptedServer(done_but_open).running() as server:
        loaded = load(server, spec, 8, 0.5)
    assert [(trace.status, trace.error, trace.output_tokens) for trace in loaded.traces] == [("ok", None, 2)] * 8


def test_no_turn_is_sent_after_the_end() -> None:
    with ScriptedServer(done_but_open).running() as server:
        loaded = load(server, "in=4,out=2,turns=2,arrivals=constant(200/s)", 8, 0.5)
        time.sleep(0.1)
        assert len(server.seen) == sum(trace.t_send_ns is not None for trace in loaded.traces)
    assert all(trace.t_sched_ns <= loaded.end_ns for trace in loaded.traces)


@pytest.mark.parametrize("timeout_s", [0.49, 0.5, 0.501])
def test_time_outs_due_when_the_run_ends_are_quiet(timeout_s: float, caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(lambda n, seen: [(0.0, HOLD)]).running() as server:
        loaded = load(server, "in=4,out=2,arrivals=burst", 200, 0.5, timeout_s=timeout_s)
    assert len(loaded.traces) == 200
    assert "ok" not in {trace.status for trace in loaded.traces}
    assert [record.getMessage() for record in caplog.records] == []


def test_one_answer_that_never_ends_does_not_drop_what_was_not_sent_any_more() -> None:
    """Precise enough after 1 to 2 s: nothing is due from then on, though the deadline comes before the last answer."""

    def script(number: int, _: Seen) -> Script:
        return [(0.01, HEAD), (0.0, HOLD)] if number == 9 else [(0.01, HEAD + chunk(token())), (0.01, WHOLE + END)]

    with ScriptedServer(script).running() as server:
        loaded = load(server, "in=4,out=2,arrivals=constant(150/s)", 5000, 4.0, stop=Stop(precision=0.9))
    assert loaded.stopped_because == "precise_enough"
    assert [trace.index for trace in loaded.traces if trace.status != "ok"] == [9]
    assert len(loaded.traces) == len(server.seen)


def test_a_connection_on_which_something_came_between_answers_is_not_used_again() -> None:
    with ScriptedServer(lambda n, seen: [(0.0, HEAD + WHOLE + END), (0.02, reply(408, b"idle"))]).running() as server:
        loaded = load(server, "in=4,out=2,arrivals=constant(10/s)", 4, 5.0, keep_alive=True)
        assert len({seen.connection for seen in server.seen}) == 4
    assert {trace.status for trace in loaded.traces} == {"ok"}
