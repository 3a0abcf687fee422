"""What a job is expected to take, against runs of real tools (docs/reference/quantisation.md)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.quantize.effort import estimate_effort
from powerband.quantize.methods import parse_method
from tests.support.shapes import smollm

MIB = 1 << 20


@pytest.mark.parametrize(
    ("method", "mib"),
    [("gguf:Q8_0", 138.1), ("gguf:Q6_K", 132.0), ("gguf:Q4_K_M", 100.6), ("gguf:Q2_K", 84.1), ("int8", 156.2),
     ("bnb-nf4", 106.7), ("bnb-int8", 156.0), ("w8a8", 155.7), ("mlx4", 72.3)],
)  # fmt: skip
def test_sizes_are_those_that_the_tools_wrote(method: str, mib: float) -> None:
    found = estimate_effort(parse_method(method), smollm(), cores=1)
    assert found.output_bytes / MIB == pytest.approx(mib, rel=0.006)


@pytest.mark.parametrize(
    ("method", "cpu_s", "memory_mib"),
    [("gguf:Q8_0", 0.8, 417), ("gguf:Q4_K_M", 2.2, 424), ("gguf:Q2_K", 10.4, 429), ("int8", 4.8, 1018),
     ("bnb-nf4", 8.2, 1120), ("w8a8", 6.5, 863), ("mlx4", 2.1, 253)],
)  # fmt: skip
def test_time_is_within_its_factor_of_three_and_memory_within_a_quarter(
    method: str, cpu_s: float, memory_mib: float
) -> None:
    found = estimate_effort(parse_method(method), smollm(), cores=1, from_folder=False)
    assert found.interval_s.low <= cpu_s <= found.interval_s.high
    assert found.memory_bytes / MIB == pytest.approx(memory_mib, rel=0.25)


@pytest.mark.parametrize(
    ("method", "tool", "tokens", "cpu_s", "memory_mib", "mib"),
    [("gptq", "gptqmodel", 4096, 115.5, 2539, 109.3), ("gptq", "llm-compressor", 8192, 87.2, 893, 107.9)],
)
def test_calibrated_methods_too(
    method: str, tool: str, tokens: int, cpu_s: float, memory_mib: float, mib: float
) -> None:
    found = estimate_effort(parse_method(method, tool), smollm(), cores=1, calibration_tokens=tokens)
    assert found.interval_s.low <= cpu_s <= found.interval_s.high
    assert found.memory_bytes / MIB == pytest.approx(memory_mib, rel=0.35)
    assert found.output_bytes / MIB == pytest.approx(mib, rel=0.006)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 64), st.integers(0, 100_000), st.integers(0, 100_000))
def test_more_text_takes_longer_and_more_cores_take_less(cores: int, few: int, more: int) -> None:
    few, more = sorted((few, more))
    job, model = parse_method("gptq"), smollm()
    short = estimate_effort(job, model, cores=cores, calibration_tokens=few)
    long = estimate_effort(job, model, cores=cores, calibration_tokens=more)
    assert short.seconds <= long.seconds
    assert short.memory_bytes <= long.memory_bytes
    assert estimate_effort(job, model, cores=cores + 1, calibration_tokens=few).seconds <= short.seconds
