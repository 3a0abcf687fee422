"""A step time whose every term is a round number, so that expected times can be worked out by hand."""

from collections.abc import Callable

import pytest

from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.roofline import Terms
from powerband.simulate.step_time import FACTORS, StepTime


@pytest.fixture(scope="session")
def config() -> EngineConfig:
    return EngineConfig(engine="vllm", model="hand")


@pytest.fixture(scope="session")
def step_of(config: EngineConfig) -> Callable[..., StepTime]:
    """StepTime with the given terms in seconds and 0 elsewhere; terms add up and nothing is uncertain."""

    def build(**terms: float) -> StepTime:
        zero = dict.fromkeys(Terms.__struct_fields__, 0.0)
        values = {
            **zero,
            "expert_share": 1.0,
            "window_tokens": 0,
            "ubatch_tokens": 1 << 30,
            "single_ratio": 1.0,
            "tile_tokens": 1,
            **terms,
        }
        size = len(FACTORS)
        return StepTime(
            model=ModelSpec(
                name="hand",
                architecture="Hand",
                layers=(LayerGroup(count=1, kind="attention", kv_heads=1, head_dim=1),),
                hidden=1,
                heads=1,
                vocab=1,
                parameters=1,
                active_parameters=1,
                weight_bytes=2,
                weight_dtype="bf16",
                basis="computed",
                context_tokens=1 << 20,
            ),
            device=DeviceSpec(
                name="hand",
                vendor="none",
                kind="gpu",
                memory_bytes=1,
                bandwidth_bytes_per_s=1.0,
                flops_per_s={"bf16": 1.0},
                source="made up for the test",
            ),
            config=config,
            terms=Terms(**values),  # type: ignore[arg-type]
            factors=tuple(0.0 if name in ("small_batch", "single", "leftover") else 1.0 for name in FACTORS),
            covariance=((0.0,) * size,) * size,
            residual=0.0,
            basis="computed",
        )

    return build


@pytest.fixture(scope="session")
def workload_of() -> Callable[..., Workload]:
    """Requests from (arrival in seconds, prompt tokens, answer tokens)."""

    def build(*requests: tuple[float, int, int], concurrency: int | None = None) -> Workload:
        specs = tuple(
            RequestSpec(offset_ns=round(at_s * 1e9), input_tokens=prompt, output_tokens=answer)
            for at_s, prompt, answer in requests
        )
        return Workload(requests=specs, source="made up for the test", concurrency=concurrency)

    return build


@pytest.fixture(scope="session")
def llama_8b() -> ModelSpec:
    """Llama 3 8B by its published shape."""
    return ModelSpec(
        name="llama-3-8b",
        architecture="LlamaForCausalLM",
        layers=(LayerGroup(count=32, kind="attention", kv_heads=8, head_dim=128),),
        hidden=4096,
        heads=32,
        vocab=128_256,
        parameters=8_030_261_248,
        active_parameters=8_030_261_248,
        weight_bytes=16_060_522_496,
        weight_dtype="bf16",
        basis="computed",
        context_tokens=8192,
        intermediate=14_336,
    )


@pytest.fixture(scope="session")
def h100() -> DeviceSpec:
    """H100 SXM by its datasheet: 3.35 TB/s, 989 TFLOP/s dense bf16."""
    return DeviceSpec(
        name="h100",
        vendor="nvidia",
        kind="gpu",
        memory_bytes=80 << 30,
        bandwidth_bytes_per_s=3.35e12,
        flops_per_s={"bf16": 989e12},
        source="NVIDIA H100 datasheet",
        link_bytes_per_s=450e9,
    )
