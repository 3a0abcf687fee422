"""Stated facts alone: each rule with figures worked out by hand, and nothing claimed where they are missing."""

import pytest

from powerband.locate.log_lines import read_log_lines
from powerband.locate.stated import diagnose_facts
from powerband.records.facts import Facts, Pair
from powerband.records.finding import Cause


def pair(before: float, after: float) -> Pair:
    return Pair(before=before, after=after)


@pytest.mark.parametrize(
    ("facts", "cause", "share"),
    [
        (Facts(cards=4, one_card=pair(100, 100)), "communication_bound", 0.75),
        (Facts(cards=2, one_card=pair(100, 190)), "undecided", 1.0),
        (Facts(quantised=pair(100, 80)), "quantisation_overhead", 0.2),
        (Facts(quantised=pair(100, 180)), "undecided", 1.0),
        (Facts(weight_bits=4, input_tokens=2000, output_tokens=100), "quantisation_overhead", 0.5),
        (Facts(weight_bits=4, input_tokens=100, output_tokens=100), "undecided", 1.0),
        (Facts(weight_bits=8, input_tokens=2000, output_tokens=100), "undecided", 1.0),
        (Facts(kernel=pair(10, 40)), "kernel_choice", 0.75),
        (Facts(graphs=pair(10, 20)), "launch_bound", 0.5),
        (Facts(launches_per_step=400, launch_s=5e-6, step_s=4e-3), "launch_bound", 0.5),
        (Facts(launches_per_step=400, launch_s=5e-6, step_s=40e-3), "undecided", 1.0),
        (Facts(smaller_prefill_budget=pair(1, 2)), "head_of_line_blocking", 0.5),
        (Facts(client_concurrency=1, sequential=pair(100, 101)), "client_limited", 1.0),
        (Facts(client_concurrency=8, sequential=pair(100, 101)), "undecided", 1.0),
        (Facts(gpu_busy_ratio=0.6, sequences=64), "scheduler_bound", 0.4),
        (Facts(gpu_busy_ratio=0.3, sequences=1), "launch_bound", 0.7),
        (Facts(gpu_busy_ratio=0.95, sequences=64), "undecided", 1.0),
        (Facts(busiest_process_cores=1.0, decodes=False), "tokenizer_bound", 0.5),
        (Facts(first_token_grows_with_tokens=True), "compute_bound", 0.5),
        (Facts(first_tokens_come_in_steps=True), "queueing", 0.5),
        (Facts(speculation=pair(1.5, 1.0)), "compute_bound", 0.5),
        (Facts(speculation=pair(0.8, 0.8)), "undecided", 1.0),
        (Facts(prefix_hit_ratio=0.1, shared_prefix_tokens=2000), "prefix_cache_miss", 0.9),
        (Facts(prefix_hit_ratio=0.1, shared_prefix_tokens=10), "undecided", 1.0),
        (Facts(kv_tokens=1000, longest_prompt_tokens=900), "kv_pressure", 0.5),
        (Facts(kv_tokens=100_000, longest_prompt_tokens=900), "undecided", 1.0),
        (Facts(), "undecided", 1.0),
    ],
)
def test_each_rule_by_hand(facts: Facts, cause: Cause, share: float) -> None:
    found = diagnose_facts(facts)
    assert found.verdict == cause, found.reason
    assert found.findings[0].share == pytest.approx(share)


def test_a_kernel_that_changes_nothing_is_refuted() -> None:
    found = diagnose_facts(Facts(kernel=pair(100, 100.2)))
    assert found.verdict == "undecided"
    assert [(f.cause, f.status) for f in found.findings[1:]] == [("kernel_choice", "refuted")]


# Lines as vLLM 0.26 writes them.
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Detected that the model can run with awq_marlin, however you specified quantization=awq explicitly, so "
         "forcing awq. Use quantization=awq_marlin for faster inference", "kernel_choice"),
        ("Your GPU does not have native support for FP8 computation but FP8 quantization is being used. Weight-only "
         "FP8 compression will be used leveraging the Marlin kernel.", "quantisation_overhead"),
        ("Custom allreduce is disabled because your platform lacks GPU P2P capability", "communication_bound"),
        ("Cudagraph is disabled under eager mode", "launch_bound"),
        ("Using default MoE config. Performance might be sub-optimal!", None),
    ],
)  # fmt: skip
def test_lines_of_a_startup_log(line: str, cause: Cause | None) -> None:
    (known,) = read_log_lines(f"INFO 01-01 something else\nWARNING 01-01 {line}\n")
    assert known.cause == cause


def test_ordinary_lines_say_nothing() -> None:
    assert read_log_lines("INFO Graph capturing finished in 12 secs\nCUDA graph memory profiling is disabled") == []


def test_a_blamed_line_is_no_finding() -> None:
    found = diagnose_facts(Facts(log="Using default MoE config."))
    assert found.verdict == "undecided"
    assert "often blamed" in found.notes[-1]
