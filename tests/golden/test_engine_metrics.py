"""Every engine's names against recorded pages: a renamed metric fails here and does not go quiet."""

from pathlib import Path

import pytest

from powerband.probes.engine_metrics import expected_names, recognise, to_sample
from powerband.probes.prometheus import parse_metrics
from powerband.records.value import Missing

PAGES = Path(__file__).parent / "metrics"


def page(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    "name", ["llamacpp-2026.10", "vllm-0.32", "vllm-0.11", "vllm-0.8", "sglang-0.5", "tgi-3.1", "tensorrt-llm-1.2"]
)
def test_every_expected_name_is_on_the_page(name: str) -> None:
    scrape = parse_metrics(page(name))
    dialect = recognise(scrape)
    assert dialect is not None
    for field, names in expected_names(dialect).items():
        assert any(one in scrape.series for one in names), f"{field}: none of {names} on the page of {name}"
    assert scrape.unreadable == 0


def test_llamacpp_page() -> None:
    sample = to_sample(page("llamacpp-2026.10"), 5)
    # Taken after four requests of 3, 31, 3 and 31 prompt tokens (31 of them cached) with 4 answer tokens each.
    assert sample.t_ns == 5
    assert sample.running == 0
    assert sample.waiting == 0
    assert sample.prompt_tokens_total == 3 + 31 + 2 + 1
    assert sample.cached_prompt_tokens_total == 1 + 30
    assert sample.output_tokens_total == 16
    assert sample.prefill_seconds_total == pytest.approx(0.156155)
    assert sample.decode_seconds_total == pytest.approx(0.109975)
    assert sample.steps_total == 16
    assert sample.accepted_tokens_total == 0
    assert isinstance(sample.preemptions_total, Missing)
    assert "does not expose" in sample.preemptions_total.missing


@pytest.mark.parametrize("name", ["vllm-0.11", "vllm-0.8"])
def test_vllm_pages_sum_over_engines_and_average_usage(name: str) -> None:
    sample = to_sample(page(name), 0)
    assert sample.running == 12
    assert sample.waiting == 3
    assert sample.kv_used_ratio == pytest.approx(0.375)
    assert sample.prompt_tokens_total == 4000
    assert sample.cached_prompt_tokens_total == 1024
    assert sample.output_tokens_total == 1250
    assert sample.preemptions_total == 2
    assert sample.steps_total == 321
    assert sample.prefill_seconds_total == 1.5
    assert sample.decode_seconds_total == 12.75


@pytest.mark.parametrize("name", ["sglang-0.5", "tgi-3.1", "tensorrt-llm-1.2"])
def test_pages_of_the_other_servers(name: str) -> None:
    sample = to_sample(page(name), 0)
    assert (sample.running, sample.waiting) == (12, 3)
    assert (sample.prompt_tokens_total, sample.output_tokens_total) == (4000, 1250)
    if name == "tgi-3.1":
        assert sample.steps_total == 21 + 300  # prefills and decode steps
        assert sample.accepted_tokens_total == 77
        assert isinstance(sample.kv_used_ratio, Missing)
    else:
        assert sample.kv_used_ratio == pytest.approx(0.375)
    if name == "sglang-0.5":
        assert sample.cached_prompt_tokens_total == 1024
    if name == "tensorrt-llm-1.2":
        assert (sample.prefill_seconds_total, sample.decode_seconds_total) == (1.5, 12.75)


def test_a_renamed_metric_is_missing_with_its_name() -> None:
    text = page("vllm-0.11").replace("vllm:num_requests_running", "vllm:requests_running")
    sample = to_sample(text, 0)
    assert isinstance(sample.running, Missing)
    assert "vllm:num_requests_running" in sample.running.missing
    assert "renamed" in sample.running.missing
    assert sample.waiting == 3
