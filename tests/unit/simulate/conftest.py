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
    """StepTime with the given terms in seconds and 0 elsewhere; terms add up (no overlap) and no factor is unsure."""

    def build(**terms: float) -> StepTime:
        zero = dict.fromkeys(Terms.__struct_fields__, 0.0)
        values = {**zero, "expert_share": 1.0, "window_tokens": 0, "ubatch_tokens": 1 << 30, **terms}
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
            factors=(1.0,) * size,
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
