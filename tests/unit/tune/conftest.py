"""An imaginary engine whose speed is known in closed form."""

from collections.abc import Callable

import pytest

from powerband.records.config import EngineConfig, Knob
from powerband.records.metrics import Metrics
from powerband.records.run import Predicted, Trial, TrialStatus
from powerband.records.value import Interval, Missing

KNOBS = (
    Knob(name="slots", kind="int", help="", naive=1, grid=(1, 2, 4, 8, 16, 32), addresses=("no_batching",)),
    Knob(name="chunk", kind="int", help="", naive=256, grid=(128, 256, 512), addresses=("head_of_line_blocking",)),
    Knob(name="kernel", kind="choice", help="", naive="a", grid=("a", "b", "c"), choices=("a", "b", "c")),
    Knob(name="kv", kind="choice", help="", naive="f16", grid=("f16", "q8"), choices=("f16", "q8"), numerics=True),
)


@pytest.fixture
def knobs() -> tuple[Knob, ...]:
    return KNOBS


@pytest.fixture
def naive() -> EngineConfig:
    return EngineConfig(engine="imaginary", model="m", knobs={"slots": 1, "chunk": 256, "kernel": "a"})


@pytest.fixture
def metrics_of() -> Callable[..., Metrics]:
    """Metrics with the given goodput; the other figures follow from it."""

    def build(goodput: float, *, attainment: float = 0.5, ttft_s: float = 1.0, tokens_per_s: float = 100.0) -> Metrics:
        none = Missing(missing="not part of the test")
        return Metrics(
            requests=100,
            completed=100,
            errors=0,
            dropped=0,
            duration_s=10.0,
            request_rate_per_s=10.0,
            input_tokens_per_s=100.0,
            output_tokens_per_s=tokens_per_s,
            total_tokens_per_s=200.0,
            ttft_s=none,
            ttft_from_send_s=none,
            tpot_s=none,
            itl_s=none,
            e2e_s=none,
            attainment=attainment,
            goodput_per_s=goodput,
        )

    return build


@pytest.fixture
def trial_of(metrics_of: Callable[..., Metrics]) -> Callable[..., Trial]:
    def build(config: EngineConfig, goodput: float | None, *, n: int = 1, status: TrialStatus = "done") -> Trial:
        measured = None if goodput is None else metrics_of(goodput)
        return Trial(n=n, purpose="tune", config=config, status=status, measured=measured, engine_seconds=10.0)

    return build


@pytest.fixture
def predicted_of() -> Callable[..., Predicted]:
    def build(value: float, *, spread: float = 0.1) -> Predicted:
        return Predicted(
            objective=value,
            interval=Interval(low=value * (1 - spread), high=value * (1 + spread)),
            output_tokens_per_s=value,
        )

    return build
