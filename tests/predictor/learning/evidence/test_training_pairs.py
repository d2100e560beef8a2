from __future__ import annotations

import numpy as np
import pytest

from predictor.gaussian_process.kernel import KernelParameters
from predictor.gaussian_process.rows import Rows
from predictor.gaussian_process.set_process import SetProcess
from predictor.learning.evidence.training_pairs import TrainingPairs
from predictor.predictor import Predictor
from tests.predictor.gaussian_process.test_process import MEMBERS, PAIRS, P, rows_of


@pytest.fixture(scope="module")
def process(predictor: Predictor) -> SetProcess:
    fitted = predictor.fitted_.model.process
    assert fitted is not None
    return fitted


def test_come_from_the_training_sets(process: SetProcess) -> None:
    training = TrainingPairs.of(process, process.seen.members, KernelParameters())
    own, partner = training.rows.own, training.rows.partners[:, 0]
    assert len(training)
    assert (process.weights.weight[own, partner] != 0).all()
    members = process.seen.members
    np.testing.assert_array_equal(training.setting, members.setting[own])
    assert set(training.setting.tolist()) == {0, 1}


@pytest.mark.parametrize("most", [1, 3])
def test_are_few_for_each_setting(most: int) -> None:
    rows = rows_of(PAIRS)
    training = TrainingPairs.among(P, MEMBERS, rows, np.full(len(rows), 0.3), most)
    settings, count = np.unique(training.setting, return_counts=True)
    assert settings.tolist() == np.unique(MEMBERS.setting[rows.own]).tolist()
    assert count.max() <= most


def test_noise_is_that_of_a_measurement() -> None:
    rows = rows_of(PAIRS)
    light, heavy = (
        TrainingPairs.among(P, MEMBERS, rows, np.full(len(rows), log_slowdown)).noise
        for log_slowdown in (0.2, 5.0)
    )
    # The excess of a light slowdown is less certain than its step time.
    assert (light > 10 * P.noise).all()
    np.testing.assert_allclose(heavy, P.noise, rtol=0.02)


def test_of_some_settings(process: SetProcess) -> None:
    training = TrainingPairs.of(process, process.seen.members, KernelParameters())
    here = training.within(np.array([1]))
    assert 0 < len(here) < len(training)
    assert (here.setting == 1).all()
    assert not len(training.within(np.array([5])))


def test_says_nothing_about_pairs_that_were_observed() -> None:
    rows = rows_of(PAIRS)
    training = TrainingPairs.among(P, MEMBERS, rows, np.full(len(rows), 0.3))
    own, partner = training.rows.own[:1], training.rows.partners[:1]
    # A set of three is not the pair.
    third = np.concatenate([training.rows.partners[1:2], training.rows.partners[1:2]], 1)
    observed = Rows(own, partner).joined(Rows(training.rows.own[1:2], third))
    noise = training.noise_beside(MEMBERS, observed)
    assert noise[0] > 1e3
    np.testing.assert_array_equal(noise[1:], training.noise[1:])


def test_repeated_for_several_campaigns(process: SetProcess) -> None:
    training = TrainingPairs.of(process, process.seen.members, KernelParameters())
    several, start = training.repeated(process.seen, [1, 0, 1])
    here = len(training.within(np.array([1])))
    assert np.bincount(several.setting).tolist() == [here, len(training) - here, here]
    np.testing.assert_array_equal(start.members.setting[several.rows.own], several.setting)
    np.testing.assert_array_equal(start.members.setting[several.rows.partners[:, 0]], several.setting)
    first, last = several.within(np.array([0])), several.within(np.array([2]))
    np.testing.assert_array_equal(start.members.place[first.rows.own], start.members.place[last.rows.own])
    np.testing.assert_array_equal(
        start.members.job[first.rows.partners], start.members.job[last.rows.partners]
    )


def test_none_without_settings(process: SetProcess) -> None:
    several, start = TrainingPairs.of(process, process.seen.members, KernelParameters()).repeated(
        process.seen, []
    )
    assert not len(several)
    assert not len(start.members)
