"""What trials teach: effects of knob values, causes of death, and the averages that choices rest on."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from powerband.records.config import EngineConfig, Knob
from powerband.records.metrics import Distribution, Metrics
from powerband.records.objective import is_better
from powerband.records.run import Predicted, Response, Trial
from powerband.records.value import Interval
from powerband.tune.effects import Effects
from powerband.tune.failures import survival
from powerband.tune.improvement import SLICES, expected_improvement
from powerband.tune.outlook import Outlook, Values
from powerband.tune.response import implied_step, value_at


def test_an_effect_is_learnt_and_carried_over() -> None:
    effects = Effects(np.array([0.1, 0.12, 0.12]))  # in front the part that all share
    baseline, first, both = [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]
    effects.learn(np.array([baseline, first]), np.array([0.0, -0.2]))
    mean, sd = effects.expect(np.array([baseline, first, both]))
    assert mean[1] < -0.1  # most of the miss of -20 % stays with the value that had it
    assert abs(mean[0]) < 0.05
    assert mean[2] == pytest.approx(mean[1], abs=1e-9)  # the second value was never seen
    assert sd[0] < sd[1] < sd[2]


def test_without_trials_nothing_is_expected() -> None:
    effects = Effects(np.array([0.1, 0.05]))
    effects.learn(np.zeros((0, 2)), np.zeros(0))
    mean, sd = effects.expect(np.array([[1.0, 1.0]]))
    assert mean[0] == 0.0
    assert sd[0] == pytest.approx((0.1**2 + 0.05**2) ** 0.5)


TIMES_S = (0.016, 0.020, 0.026)


def outlook(trials: list[Trial], knobs: tuple[Knob, ...], naive: EngineConfig) -> Outlook:
    """Every config is predicted alike, by ``response()`` without doubt of its own."""
    curve = msgspec.structs.replace(response(), spread=0.0)
    predicted = Predicted(objective=10.0, interval=Interval(low=9.0, high=11.0), output_tokens_per_s=1, response=curve)
    values = Values([naive.replace(kernel="b")], naive, knobs)
    return Outlook([], values, lambda _: predicted, trials, "goodput_per_s")


def tried(trial_of: Callable[..., Trial], config: EngineConfig, log_step: float) -> Trial:
    """A trial whose every token took exp(log_step) times as long as predicted, and whose goodput is the curve's."""
    tpot_s = float(np.exp(np.interp(log_step, response().log_step, np.log(TIMES_S))))
    times = Distribution(mean=tpot_s, p50=tpot_s, p90=tpot_s, p99=tpot_s, n=9)
    trial = trial_of(config, float(value_at(response(), np.array([log_step]))[0]))
    assert trial.measured is not None
    return msgspec.structs.replace(trial, measured=msgspec.structs.replace(trial.measured, tpot_s=times))


def test_a_lucky_trial_counts_by_how_sure_it_is(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: Callable[..., Trial]
) -> None:
    once = outlook([tried(trial_of, naive, -0.1)], knobs, naive)
    before, noise = 0.10**2 + 0.03**2, 0.03**2  # what all share and what is its own; of one trial
    assert once.mean[0] == pytest.approx(-0.1 * before / (before + noise))
    twice = outlook([tried(trial_of, naive, -0.1), tried(trial_of, naive, -0.02)], knobs, naive)
    assert twice.mean[0] == pytest.approx(-0.06 * before / (before + noise / 2))
    assert twice.sd[0] == pytest.approx((before * noise / 2 / (before + noise / 2)) ** 0.5)


def test_what_shares_a_setting_with_a_lucky_trial_corrects_it(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: Callable[..., Trial]
) -> None:
    lucky, sober = naive.replace(kernel="b"), naive.replace(kernel="b", chunk=512)
    alone = outlook([tried(trial_of, naive, 0.0), tried(trial_of, lucky, -0.1)], knobs, naive)
    both = outlook(
        [*[tried(trial_of, naive, 0.0), tried(trial_of, lucky, -0.1)], tried(trial_of, sober, 0.0)], knobs, naive
    )
    assert both.value_of(lucky) < alone.value_of(lucky) < 11.0  # what it measured
    assert both.value_of(sober) > 10.0


def test_slices_have_the_moments_of_a_normal() -> None:
    assert SLICES.mean() == pytest.approx(0.0, abs=1e-9)
    assert SLICES.std() == pytest.approx(1.0, abs=0.03)
    assert np.abs(SLICES + SLICES[::-1]).max() < 1e-9


def test_expected_improvement_by_hand() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    assert expected_improvement(values, 2.0).tolist() == [0.75, 0.0]  # (0 + 0 + 1 + 2) / 4


def response() -> Response:
    return Response(spread=0.1, log_step=(-0.2, 0.0, 0.2), objective=(12.0, 10.0, 4.0), tpot_p50_s=TIMES_S)


def test_response_is_read_both_ways(metrics_of: Callable[..., Metrics]) -> None:
    assert value_at(response(), np.array([-9.0, -0.1, 0.0, 0.1])).tolist() == [12.0, 11.0, 10.0, 7.0]
    assert value_at(response(), np.array([0.5]))[0] == pytest.approx(4.0 * np.exp(-0.3))
    assert implied_step(response(), metrics_of(7.0), "goodput_per_s") == pytest.approx(0.1)
    assert implied_step(response(), metrics_of(20.0), "goodput_per_s") is None  # nothing on the curve explains it


def test_time_per_token_tells_the_speed_first(metrics_of: Callable[..., Metrics]) -> None:
    def at(tpot_s: float) -> float | None:
        times = Distribution(mean=tpot_s, p50=tpot_s, p90=tpot_s, p99=tpot_s, n=9)
        return implied_step(response(), msgspec.structs.replace(metrics_of(7.0), tpot_s=times), "goodput_per_s")

    assert at(0.020) == pytest.approx(0.0)
    assert at((0.020 * 0.026) ** 0.5) == pytest.approx(0.1)  # half way on the logarithmic scale
    assert at(0.026 * 1.5) == pytest.approx(0.2 + np.log(1.5))  # beyond the end: as the step
    assert at(0.016 / 1.5) == pytest.approx(-0.2 - np.log(1.5))


def test_survival_blames_what_was_new(knobs: tuple[Knob, ...], naive: EngineConfig) -> None:
    dead = naive.replace(slots=16)
    assert survival(naive.replace(slots=8), [naive], [dead], knobs) == 1.0
    assert survival(dead, [naive], [dead], knobs) == pytest.approx(0.2)
    assert survival(naive.replace(slots=32), [naive], [dead], knobs) == pytest.approx(0.2)  # further the same way
    assert survival(naive.replace(slots=16, kernel="b"), [naive], [dead], knobs) == pytest.approx(0.2)


def test_survival_shares_the_blame_and_clears_the_innocent(knobs: tuple[Knob, ...], naive: EngineConfig) -> None:
    dead = naive.replace(slots=16, kernel="b")
    assert survival(naive.replace(kernel="b"), [naive], [dead], knobs) == pytest.approx(0.6)
    lived = naive.replace(kernel="b")
    assert survival(naive.replace(kernel="b", chunk=512), [naive, lived], [dead], knobs) == 1.0
    assert survival(naive.replace(slots=16), [naive, lived], [dead], knobs) == pytest.approx(0.2)


def test_is_better_breaks_ties(metrics_of: Callable[..., Metrics]) -> None:
    assert is_better(metrics_of(1.1), metrics_of(1.0), "goodput_per_s")
    assert not is_better(metrics_of(1.0), metrics_of(1.1), "goodput_per_s")
    assert is_better(metrics_of(1.0, attainment=0.9), metrics_of(1.01, attainment=0.5), "goodput_per_s")
    assert is_better(metrics_of(1.0, tokens_per_s=120.0), metrics_of(1.0), "goodput_per_s")
    assert not is_better(metrics_of(1.0), metrics_of(1.0), "goodput_per_s")
    assert is_better(metrics_of(0.1, tokens_per_s=120.0), metrics_of(9.0), "output_tokens_per_s")
