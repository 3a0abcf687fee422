"""Which tests are chosen for which findings, on engines with different knobs."""

import msgspec
import pytest

from powerband.engines.fake import Fake
from powerband.engines.llamacpp_knobs import llamacpp_knobs
from powerband.locate.bisect import faster, halved, long_prompts, plan_tests, unshared, without
from powerband.records.config import EngineConfig, Knob, Value
from powerband.records.finding import Cause, Diagnosis, Finding, Share
from powerband.records.workload import RequestSpec, Workload

GRAPHS = Knob(name="enforce_eager", kind="bool", naive=False, help="")
PARALLEL = Knob(name="tensor_parallel_size", kind="int", naive=1, help="")


def found(*causes: Cause, prefill: float = 0.1, decode: float = 0.8) -> Diagnosis:
    findings = tuple(Finding(cause=cause, share=0.5, evidence="", remedy="", test="") for cause in causes)
    parts = (Share(name="prefill", seconds=1, share=prefill), Share(name="decode", seconds=1, share=decode))
    return Diagnosis(
        sources=(), window_s=1, breakdown=(), verdict=causes[0], findings=findings, request_breakdown=parts
    )


def traffic(*lengths: int) -> Workload:
    requests = tuple(
        RequestSpec(offset_ns=k * 100, input_tokens=n, output_tokens=4, prefix_id=1, prefix_tokens=8)
        for k, n in enumerate(lengths)
    )
    return Workload(requests=requests, source="hand-made")


PLAIN = traffic(16, 16, 16, 16)


def changes(
    diagnosis: Diagnosis, knobs: tuple[Knob, ...], set_: dict[str, Value], workload: Workload = PLAIN
) -> dict[str, str]:
    config = EngineConfig(engine="e", model="m", knobs=set_)
    tests, _ = plan_tests(diagnosis, config, knobs, workload, restartable=True)
    return {test.name: test.change for test in tests if test.restart}


@pytest.mark.parametrize(
    ("cause", "knobs", "set_", "change"),
    [
        ("no_batching", Fake().knobs(), {"slots": 1}, "slots 1 -> 8"),
        ("queueing", Fake().knobs(), {"slots": 3}, "slots 3 -> 12"),
        ("queueing", llamacpp_knobs(), {"n_parallel": 200}, "n_parallel 200 -> 256"),
        ("static_batching", Fake().knobs(), {"static": True}, "static true -> false"),
        ("static_batching", llamacpp_knobs(), {"cont_batching": False}, "cont_batching false -> true"),
        ("kv_pressure", Fake().knobs(), {"kv_tokens": 900}, "kv_tokens 900 -> 3600"),
        ("prefix_cache_miss", llamacpp_knobs(), {"cache_prompt": False}, "cache_prompt false -> true"),
        ("head_of_line_blocking", Fake().knobs(), {}, "chunk_tokens 512 -> 128"),
        ("launch_bound", (GRAPHS,), {"enforce_eager": True}, "enforce_eager true -> false"),
        ("communication_bound", (PARALLEL,), {"tensor_parallel_size": 4}, "tensor_parallel_size 4 -> 1"),
    ],
)
def test_the_setting_that_takes_a_cause_away(
    cause: Cause, knobs: tuple[Knob, ...], set_: dict[str, Value], change: str
) -> None:
    assert change in changes(found(cause), knobs, set_).values()


def test_a_queue_for_room_in_a_step_is_tested_by_the_tokens_of_a_step() -> None:
    queue = found("queueing")
    waits = msgspec.structs.replace(queue.findings[0], setting="chunk_tokens")
    queue = msgspec.structs.replace(queue, findings=(waits,))
    assert changes(queue, Fake().knobs(), {"slots": 3, "chunk_tokens": 64}) == {
        "more tokens a step": "chunk_tokens 64 -> 256"
    }


def test_a_setting_that_is_right_already_gives_no_test() -> None:
    assert changes(found("launch_bound"), (GRAPHS,), {}) == {}
    assert changes(found("static_batching"), llamacpp_knobs(), {}) == {}
    assert changes(found("communication_bound"), (PARALLEL,), {}) == {}


def test_what_cannot_be_restarted_says_so() -> None:
    config = EngineConfig(engine="openai", model="")
    tests, untested = plan_tests(found("kv_pressure", "idle_no_work"), config, (), PLAIN, restartable=False)
    assert not any(test.restart for test in tests)
    assert "twice the load" in {test.name for test in tests}
    assert untested == ["kv_pressure was not tested: the engine would have to be restarted with other settings"]


def test_text_and_sweep_are_always_run_and_restarts_come_last() -> None:
    config = EngineConfig(engine="fake", model="", knobs={"slots": 1})
    tests, _ = plan_tests(found("no_batching"), config, Fake().knobs(), PLAIN, restartable=True)
    assert [test.name for test in tests] == ["token ids against text", "batch sweep", "more seats"]


def test_a_sweep_of_decode_does_not_judge_what_prefill_computes() -> None:
    config = EngineConfig(engine="fake", model="")
    tests, _ = plan_tests(found("compute_bound", prefill=0.8, decode=0.1), config, (), PLAIN, restartable=True)
    by_name = {test.name: test.causes for test in tests}
    assert by_name["batch sweep"] == ("no_batching",)
    assert by_name["half the prompt"] == ("compute_bound",)


def test_long_prompts_are_told_by_the_median() -> None:
    mixed = traffic(10, 10, 10, 10, 40, 39)
    assert long_prompts(mixed) == {4}
    assert [r.input_tokens for r in without(mixed, long_prompts(mixed)).requests] == [10, 10, 10, 10, 39]
    assert long_prompts(traffic()) == frozenset()


def test_changed_traffic_keeps_what_is_not_meant() -> None:
    workload = traffic(10, 11)
    assert [r.offset_ns for r in faster(workload, 2.0).requests] == [0, 50]
    assert faster(Workload(requests=workload.requests, source="", concurrency=3), 2.0).concurrency == 6
    assert [r.input_tokens for r in halved(workload).requests] == [5, 5]
    assert all(r.prefix_id is None for r in unshared(workload).requests)
    assert [r.input_tokens for r in unshared(workload).requests] == [10, 11]
