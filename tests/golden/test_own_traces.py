"""Traces of our own from an H200: native Transformers decode waits for launches, vLLM's for memory."""

import json
from pathlib import Path

import pytest

from powerband.locate.timeline import diagnose_timeline
from powerband.locate.trace_steps import decode_sequences
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.kineto import read_kineto
from powerband.records.finding import Diagnosis

# The shape of Qwen3-8B: 8.19 billion parameters, 16.4 GB in 16 bits, 3.4 ms at the 4.8 TB/s of an H200's datasheet.
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
TRACES = Path(__file__).parent / "traces_own"


def check_sums(found: Diagnosis) -> None:
    assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s)


def test_native_transformers_decode_is_launch_bound() -> None:
    found = diagnose_timeline(read_kineto(TRACES / "transformers-decode.json.gz"))
    check_sums(found)
    assert found.verdict == "launch_bound", found.reason
    # 7,000 kernels of 17.9 ms in all within ten steps of 18.9 ms.
    assert found.gpu_busy_ratio == pytest.approx(0.095, abs=0.001)
    assert "7000 launches, 1.0 kernels each" in found.reason


def test_vllm_decode_of_one_sequence_is_bandwidth_bound_although_its_prompt_was_launched_kernel_by_kernel() -> None:
    timeline = read_kineto(TRACES / "vllm-decode.json.gz")
    assert decode_sequences(timeline) == 1
    found = diagnose_timeline(timeline)
    check_sums(found)
    assert found.verdict == "memory_bandwidth_bound", found.reason
    assert found.gpu_busy_ratio == pytest.approx(0.776, abs=0.001)
    launching = next(finding for finding in found.findings if finding.cause == "launch_bound")
    assert launching.share == pytest.approx(0.204, abs=0.001)
    assert "of that lies in steps with prompts" in launching.evidence


def test_with_model_and_card_the_steps_stand_beside_the_roofline(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    timeline = read_kineto(TRACES / "vllm-decode.json.gz")
    found = diagnose_timeline(timeline, model=read_model(str(tmp_path)), device=read_device("h200"))
    assert found.verdict == "memory_bandwidth_bound"
    # 3.41 of the 5.16 ms that the device works in a step of 5.27 ms.
    assert "22 decode steps of 1: median 5.27 ms, the device busy for 5.16 ms of it" in found.reason
    assert "3.41 ms on h200: 1.5x the floor, MBU 66 % while busy" in found.reason
