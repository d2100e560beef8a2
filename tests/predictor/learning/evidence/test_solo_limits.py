"""Corrected solo step times stay within what the data sheet and the job's step times with other options allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from models.features import Floats
from predictor.examples.observations import Observation
from predictor.examples.plausibility import BOOSTED
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, SoloProfile, Workload

OTHER = Workload("beta", 16, solo=SoloProfile(step_time_s=0.03))
BATCHES = (8, 24, 31, 32, 33, 48, 64, 128)


def alone(batch_size: int, device: str = "v100") -> ColocationSet:
    return ColocationSet(device, (Workload("alpha", batch_size),))


def plain(predictor: Predictor, batch_size: int) -> float:
    return float(predictor.predict_arrays([alone(batch_size)]).step_time_s[0, 0])


def floor_s(predictor: Predictor, batch_size: int) -> float:
    featurizer = predictor.fitted_.model.featurizer
    return featurizer.job(Workload("alpha", batch_size), "v100").cost.floor_s


def after(predictor: Predictor, factors: Mapping[int, float], sharing: str = "time-slice") -> Posterior:
    """Batch sizes of one job alone take so many times as long as predicted."""
    posterior = Posterior(predictor)
    for batch, factor in factors.items():
        observed = replace(alone(batch), sharing=sharing)
        posterior.observe([Observation(observed, 0, factor * plain(predictor, batch))])
    return posterior


def solo_steps(posterior: Posterior, batches: tuple[int, ...] = BATCHES) -> Floats:
    """Solo step times alone and beside another job, the same whichever way they are asked."""
    sets = [alone(batch) for batch in batches]
    sets += [replace(s, workloads=(*s.workloads, OTHER)) for s in sets]
    arrays = posterior.predict_arrays(sets)
    of_rows = posterior.predict_rows(posterior.rows(sets), "time-slice")
    members = [prediction.members[0] for prediction in posterior.predict_many(sets)]
    result = arrays.solo_step_time_s[:, 0]
    np.testing.assert_allclose(of_rows.solo_step_time_s[:, 0], result)
    np.testing.assert_allclose([m.solo_step_time_s.value for m in members], result)
    np.testing.assert_allclose([m.step_time_s.value for m in members], arrays.step_time_s[:, 0], rtol=1e-5)
    np.testing.assert_allclose(result[: len(batches)], result[len(batches) :])
    return np.asarray(result[: len(batches)])


@pytest.mark.parametrize("factor", [0.3, 0.5, 0.7])
def test_no_batch_size_but_the_observed_one_beats_the_data_sheet(predictor: Predictor, factor: float) -> None:
    steps = solo_steps(after(predictor, {32: factor}))
    floors = np.array([floor_s(predictor, batch) for batch in BATCHES])
    least = np.delete(steps / floors, BATCHES.index(32))
    assert least.min() >= 1 - 1e-9
    assert steps[BATCHES.index(32)] == pytest.approx(factor * plain(predictor, 32), rel=0.006)


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_no_interval_reaches_below_the_data_sheet(predictor: Predictor, factor: float) -> None:
    asked = replace(alone(1024), workloads=(Workload("alpha", 1024), OTHER))
    before, observed = predictor.predict(asked).members[0], Workload("beta", 1024)
    posterior = Posterior(predictor)
    of = ColocationSet("v100", (observed,))
    step_s = factor * float(predictor.predict_arrays([of]).step_time_s[0, 0])
    posterior.observe([Observation(of, 0, step_s)])
    least_s = BOOSTED * floor_s(predictor, 1024)
    for answer in (before, posterior.predict(asked).members[0]):
        assert answer.solo_step_time_s.lower == pytest.approx(least_s)
        assert answer.step_time_s.lower >= least_s * (1 - 1e-9)


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
@pytest.mark.parametrize("factors", [{32: 3.0}, {32: 0.8}, {32: 2.0, 64: 2.5}, {8: 0.7, 32: 3.0, 128: 1.5}])
def test_larger_batches_take_no_less_than_an_observed_one(
    predictor: Predictor, factors: dict[int, float], sharing: str
) -> None:
    steps = dict(zip(BATCHES, solo_steps(after(predictor, factors, sharing)), strict=True))
    for observed in factors:
        for batch in set(BATCHES) - set(factors):
            ordered = (steps[batch] - steps[observed]) * (batch - observed) >= -1e-12
            assert ordered or steps[batch] <= floor_s(predictor, batch) * (1 + 1e-9)


def test_between_observations_that_contradict_each_other(predictor: Predictor) -> None:
    step = 2.0 * plain(predictor, 24)
    posterior = after(predictor, {24: 2.0, 48: 0.75 * step / plain(predictor, 48)})
    first, between, last = solo_steps(posterior, (24, 32, 48))
    assert last < first
    assert last <= between <= first


LESS = (
    {"frozen_prefix": 1},
    {"batch_size": 24},
    {"data_on_device": True},
    {"mode": "inference"},
    {"frozen_prefix": 1, "batch_size": 31, "data_on_device": True},
)


@pytest.mark.parametrize("less", LESS)
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_options_that_ask_for_less_take_no_longer(
    predictor: Predictor, less: dict[str, object], factor: float
) -> None:
    more = Workload("alpha", 32)
    for observed, asked, sign in (more, replace(more, **less), 1), (replace(more, **less), more, -1):  # type: ignore[arg-type]
        posterior, of = Posterior(predictor), ColocationSet("v100", (observed,))
        step_s = factor * float(predictor.predict_arrays([of]).step_time_s[0, 0])
        posterior.observe([Observation(of, 0, step_s)])
        told, answer = posterior.predict_arrays([of, ColocationSet("v100", (asked,))]).solo_step_time_s[:, 0]
        floor = predictor.fitted_.model.featurizer.job(asked, "v100").cost.floor_s
        assert (told - answer) * sign >= -1e-12 or answer <= floor * (1 + 1e-9)


def test_a_smaller_share_takes_no_less_and_a_larger_batch_with_more_frozen_layers_is_not_limited(
    predictor: Predictor,
) -> None:
    posterior, observed = Posterior(predictor), alone(32)
    posterior.observe([Observation(observed, 0, 3.0 * plain(predictor, 32))])
    limited, both, step = posterior.predict_arrays(
        [
            ColocationSet("v100", (Workload("alpha", 32, sm_share_ratio=0.9),)),
            ColocationSet("v100", (Workload("alpha", 48, frozen_prefix=1),)),
            observed,
        ]
    ).solo_step_time_s[:, 0]
    assert both < step <= limited


def test_other_devices_and_other_options_are_not_limited(predictor: Predictor) -> None:
    posterior = after(predictor, {32: 3.0})
    observed = solo_steps(posterior, (32,))[0]
    elsewhere, in_amp = posterior.predict_arrays(
        [alone(31, "k80"), ColocationSet("v100", (Workload("alpha", 33, precision="amp"),))]
    ).solo_step_time_s[:, 0]
    assert in_amp < observed < elsewhere


SLICES = (
    "a100:mig=1g",
    "a100:mig=1g.10gb",
    "a100:mig=2g",
    "a100:mig=3g",
    "a100:mig=4g",
    "a100:mig=7g",
    "a100",
)


@pytest.mark.parametrize("factor", [0.7, 3.0])
@pytest.mark.parametrize("seen", SLICES)
def test_a_larger_slice_is_no_slower_than_an_observed_one_and_a_smaller_one_no_faster(
    predictor: Predictor, seen: str, factor: float
) -> None:
    posterior, observed = Posterior(predictor), alone(32, seen)
    step_s = factor * float(predictor.predict_arrays([observed]).step_time_s[0, 0])
    posterior.observe([Observation(observed, 0, step_s)])
    featurizer, place = predictor.fitted_.model.featurizer, SLICES.index(seen)
    for batch, smaller, larger in (
        (32, SLICES[:place], SLICES[place:]),
        (48, SLICES[:place], ()),
        (24, (), SLICES[place:]),
    ):
        floor = {d: featurizer.job(Workload("alpha", batch), d).cost.floor_s for d in SLICES}
        steps = dict(
            zip(
                SLICES,
                posterior.predict_arrays([alone(batch, d) for d in SLICES]).step_time_s[:, 0],
                strict=True,
            )
        )
        told = posterior.predict_arrays([observed]).step_time_s[0, 0]
        assert all(steps[d] >= told * (1 - 1e-9) for d in smaller)
        assert all(steps[d] <= max(told, floor[d]) * (1 + 1e-9) for d in larger)


def test_slices_of_other_cards_are_not_limited(predictor: Predictor) -> None:
    posterior, observed = Posterior(predictor), alone(32, "a30:mig=1g")
    elsewhere = [alone(32, "a100:mig=1g"), alone(32, "h100:mig=1g")]
    step_s, *before = predictor.predict_arrays([observed, *elsewhere]).step_time_s[:, 0]
    posterior.observe([Observation(observed, 0, 3.0 * step_s)])
    after_s = posterior.predict_arrays(elsewhere).step_time_s[:, 0]
    assert (after_s < 2.5 * step_s).all()
    assert (after_s > before).all()


def test_an_implausible_observation_limits_nothing_and_is_named(predictor: Predictor) -> None:
    posterior = after(predictor, {32: 20.0})
    assert solo_steps(posterior, (48,))[0] == pytest.approx(plain(predictor, 48), rel=1e-3)
    (reason,) = [r for r in posterior.predict(alone(48)).reasons if "implausible" in r]
    assert reason.startswith("alpha: the step time of")
    assert "observed alone on v100 for alpha:batch_size=32, is" in reason
    for asked in (alone(32), ColocationSet("v100", (Workload("gamma", 16),))):
        assert not any("implausible" in r for r in posterior.predict(asked).reasons)


def test_implausible_observations_are_named_by_batch_size_in_any_order(predictor: Predictor) -> None:
    factors = {64: 0.05, 32: 20.0}
    for order in (factors, dict(reversed(factors.items()))):
        reasons = after(predictor, order).predict(alone(48)).reasons
        assert [r.split("batch_size=")[1].split(",")[0] for r in reasons if "implausible" in r] == [
            "32",
            "64",
        ]


@pytest.mark.parametrize("larger", [False, True])
def test_a_job_seen_beside_another_faster_than_the_data_sheet_is_believed(
    predictor: Predictor, larger: bool
) -> None:
    pair = replace(alone(32), workloads=(*alone(32).workloads, OTHER))
    posterior, step_s = Posterior(predictor), 0.9 * floor_s(predictor, 32)
    posterior.observe([Observation(pair, 0, step_s)] * 16)
    if larger:  # an observed set of three has room for a second neighbour
        gamma = Workload("gamma", 16, solo=SoloProfile(step_time_s=0.03))
        posterior.observe([Observation(ColocationSet("k80", (OTHER, OTHER, gamma)), 0, 0.09)])
    answer = posterior.predict(pair).members[0]
    assert answer.step_time_s.value == pytest.approx(step_s, rel=0.05)
    assert solo_steps(posterior, (33,))[0] >= floor_s(predictor, 33) * (1 - 1e-9)


def test_a_job_seen_beside_another_no_faster_than_the_data_sheet_is_not(predictor: Predictor) -> None:
    pair = replace(alone(33), workloads=(*alone(33).workloads, OTHER))
    posterior = after(predictor, {32: 0.3})
    posterior.observe([Observation(pair, 0, 1.01 * floor_s(predictor, 33))])
    assert solo_steps(posterior, (33,))[0] >= floor_s(predictor, 33) * (1 - 1e-9)
