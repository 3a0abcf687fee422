"""Which load a rung is given next."""

import pytest

from powerband.ladder.climb import next_load
from powerband.records.ladder import Level
from powerband.records.metrics import Metrics
from powerband.records.value import Missing

NONE = Missing(missing="not part of the test")
SOME = Metrics(
    requests=1, completed=1, errors=0, dropped=0, duration_s=1.0, request_rate_per_s=1.0, input_tokens_per_s=1.0,
    output_tokens_per_s=1.0, total_tokens_per_s=2.0, ttft_s=NONE, ttft_from_send_s=NONE, tpot_s=NONE, itl_s=NONE,
    e2e_s=NONE, attainment=None, goodput_per_s=None,
)  # fmt: skip


def level(concurrency: int, holds: bool | None, tokens_per_s: float = 0.0) -> Level:
    return Level(concurrency=concurrency, trial=1, run_id="r", metrics=SOME, tokens_per_s=tokens_per_s, holds=holds)


@pytest.mark.parametrize(
    ("levels", "load"),
    [
        ([level(1, True, 10), level(64, True, 100)], 128),
        ([level(1, True, 10), level(64, True, 100), level(128, True, 102)], None),  # 2 % more do not pay
        ([level(1, True, 10), level(64, True, 100), level(128, True, 190)], 256),
        ([level(1, True, 10), level(512, True, 100)], None),  # more than the requests allow
        ([level(1, True), level(64, False)], 32),
        ([level(1, False), level(64, False)], 32),
        ([level(1, False), level(2, False)], None),
        ([level(1, True), level(64, True, 100), level(128, False)], 96),
        ([level(1, True), level(64, False), level(32, True, 100)], 48),
        ([level(1, True), level(64, True, 100), level(128, False), level(96, True, 120)], None),
        ([level(1, True), level(64, True, 100), level(128, False), level(96, False)], None),
        ([level(1, None, 10), level(64, None, 100)], 128),  # without a promise throughput alone decides
    ],
)
def test_double_halve_then_the_middle(levels: list[Level], load: int | None) -> None:
    assert next_load(levels, most=512) == load


def test_nothing_after_a_load_that_failed() -> None:
    failed = Level(concurrency=64, trial=2, run_id=None, cause="died")
    assert next_load([level(1, True), failed], most=512) is None
