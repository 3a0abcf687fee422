"""The Prometheus text format, well-formed and hostile."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.probes.engine_metrics import to_sample
from powerband.probes.prometheus import MAX_LINE_CHARS, parse_metrics
from powerband.records.value import Missing


def test_samples_with_labels_timestamps_and_exemplars() -> None:
    text = """# HELP a help
# TYPE a counter
a 1
a{x="1",y="two words"} 2.5
b{path="C:\\\\dir\\n\\"q\\"",} 3 1395066363000
c_bucket{le="+Inf"} 17 # {trace_id="KOO5S4vxi0o"} 0.67
d -Inf
e NaN
"""
    scrape = parse_metrics(text)
    assert scrape.unreadable == 0
    assert scrape.values("a") == [1.0, 2.5]
    assert scrape.values("a", x="1") == [2.5]
    assert scrape.values("a", x="2") == []
    assert scrape.series["b"][0].labels == {"path": 'C:\\dir\n"q"'}
    assert scrape.values("b") == [3.0]
    assert scrape.values("c_bucket") == [17.0]
    assert scrape.values("d") == [-math.inf]
    assert math.isnan(scrape.values("e")[0])


@pytest.mark.parametrize(
    "line",
    [
        "1a 2",
        "a",
        "a b",
        'a{x="1" 2',
        "a{x=1} 2",
        "a{",
        'a{x="1"}',
        "a 1 2 3",
        "a=1",
        "a{} ",
        "x" * MAX_LINE_CHARS + " 1",
    ],
)
def test_a_line_that_cannot_be_read_is_counted_and_left_out(line: str) -> None:
    scrape = parse_metrics(f"ok 1\n{line}\nok 2\n")
    assert scrape.values("ok") == [1.0, 2.0]
    assert set(scrape.series) == {"ok"}
    assert scrape.unreadable == 1


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse_metrics(text)
    to_sample(text, 0)


def test_a_hostile_line_takes_no_time() -> None:
    began = time.monotonic()
    parse_metrics("\n".join(['a{x="' + "\\" * 16_000] * 50))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("text", "said"), [("", "empty"), ("<html>nothing</html>", "empty"), ("node_cpu 1\n", "known engine")]
)
def test_a_page_of_no_engine_gives_the_reason(text: str, said: str) -> None:
    sample = to_sample(text, 3)
    for field in sample.__struct_fields__:
        value = getattr(sample, field)
        assert value == 3 if field == "t_ns" else isinstance(value, Missing) and said in value.missing


def test_a_value_that_is_no_number_is_missing() -> None:
    sample = to_sample("sglang:num_running_reqs NaN\nsglang:num_queue_reqs 4\n", 0)
    assert isinstance(sample.running, Missing)
    assert sample.waiting == 4


@pytest.mark.parametrize(
    ("text", "running", "waiting", "usage"),
    [
        ("sglang:num_running_reqs 3\nsglang:num_queue_reqs 4\nsglang:token_usage 0.25\n", 3, 4, 0.25),
        ("tgi_batch_current_size 3\ntgi_queue_size 4\n", 3, 4, None),
        ("trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 4\ntrtllm_kv_cache_utilization 0.5\n", 3, 4, 0.5),
        (
            'nv_trt_llm_request_metrics{request_type="scheduled"} 3\n'
            'nv_trt_llm_request_metrics{request_type="waiting"} 4\n'
            'nv_trt_llm_request_metrics{request_type="active"} 7\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.5\n',
            3, 4, 0.5,
        ),
    ],
)  # fmt: skip
def test_dialects(text: str, running: float, waiting: float, usage: float | None) -> None:
    sample = to_sample(text, 0)
    assert (sample.running, sample.waiting) == (running, waiting)
    assert isinstance(sample.kv_used_ratio, Missing) if usage is None else sample.kv_used_ratio == usage
