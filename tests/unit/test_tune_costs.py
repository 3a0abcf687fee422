"""What tune says tokens cost, by hand."""

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
