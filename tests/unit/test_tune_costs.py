"""What tune says tokens cost, by hand."""

import msgspec
import pytest

from powerband.cli.tune import costs
from tests.support.sample_report import sample_report


def test_a_million_tokens_cost_the_time_they_take() -> None:
    report = sample_report()
    by_n = {trial.n: trial for trial in report.trials}
    measured = by_n[report.baseline_trial].measured
    assert measured is not None
    paid = costs(report, 3.6, 2)
    # Two cards at 0.001 a second each, for as many seconds as a million tokens take.
    assert paid["baseline"] == pytest.approx(2 * 0.001 * 1e6 / measured.output_tokens_per_s)
    assert paid["best"] is not None
    assert paid["baseline"] is not None
    assert paid["best"] < paid["baseline"]


def test_where_cost_is_sought_the_cards_of_a_config_are_paid_and_good_answers_count() -> None:
    report = sample_report()
    two = {trial.n: trial.config for trial in report.trials}[report.baseline_trial]
    two = msgspec.structs.replace(two, engine="vllm").replace(tensor_parallel_size=2)
    trials = tuple(
        msgspec.structs.replace(trial, config=two) if trial.n == report.baseline_trial else trial
        for trial in report.trials
    )
    measured = {trial.n: trial for trial in trials}[report.baseline_trial].measured
    assert measured is not None
    assert measured.goodput_per_s
    sought = msgspec.structs.replace(report, goal="cost", trials=trials)
    good_tokens_per_s = measured.goodput_per_s * report.traffic.output_tokens_mean
    assert costs(sought, 3.6, 8)["baseline"] == pytest.approx(2 * 0.001 * 1e6 / good_tokens_per_s)
    assert costs(msgspec.structs.replace(sought, goal="speed"), 3.6, 8)["baseline"] == pytest.approx(
        8 * 0.001 * 1e6 / measured.output_tokens_per_s
    )
