"""Errors of predicted solo step times, one per job and device."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.gaussian_process.kernel import Members, solo_covariance
from predictor.learning.evidence.solo_errors import SoloErrors
from tests.predictor.gaussian_process.test_process import MEMBERS, P

OBSERVED = MEMBERS.take(np.array([0, 3, 4]))
ERROR, NOISE = np.array([0.3, -0.2, 0.1]), np.array([0.01, 0.02, 0.1])


def test_mean_and_variance_match_the_textbook_formulas() -> None:
    solo = SoloErrors(P, OBSERVED, ERROR, NOISE)
    mean, variance, added = solo.answer(MEMBERS)
    inverse = np.linalg.inv(solo_covariance(P, OBSERVED, OBSERVED) + np.diag(NOISE))
    cross = solo_covariance(P, MEMBERS, OBSERVED)
    np.testing.assert_allclose(mean, cross @ inverse @ ERROR)
    np.testing.assert_allclose(
        variance, solo.prior_variance - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    )
    np.testing.assert_allclose(added.sum(1), mean)
    np.testing.assert_allclose(solo.mean(MEMBERS), mean)
    joint = solo.joint(MEMBERS)
    np.testing.assert_allclose(joint[0], mean)
    np.testing.assert_allclose(np.diag(joint[1]), variance)


def test_no_observations_change_nothing() -> None:
    solo = SoloErrors.nothing(P)
    mean, variance, added = solo.answer(MEMBERS)
    assert len(solo) == 0
    assert not mean.any()
    assert not solo.mean(MEMBERS).any()
    assert added.shape == (len(MEMBERS), 0)
    np.testing.assert_allclose(variance, np.diag(solo_covariance(P, MEMBERS, MEMBERS)))


@pytest.mark.parametrize("confirmed", [None, True, False])
def test_a_confirmed_implausible_error_is_attributed_to_the_job(confirmed: bool | None) -> None:
    error = np.array([0.3, 5.0, 0.1])
    said = None if confirmed is None else np.array([True, confirmed, True])
    solo = SoloErrors(P, OBSERVED, error, NOISE, said)
    mean, variance, added = solo.answer(MEMBERS)
    without = SoloErrors(P, *(OBSERVED.take(np.array([0, 2])), error[[0, 2]], NOISE[[0, 2]]))
    others = np.array([k for k in range(len(MEMBERS)) if k != 3])
    np.testing.assert_allclose(mean[others], without.mean(MEMBERS)[others], atol=1e-5)
    if confirmed is not False:
        assert (mean[3], variance[3]) == (5.0, NOISE[1])
        assert added[3].tolist() == [0.0, 5.0, 0.0]
    else:
        assert mean[3] == pytest.approx(without.mean(MEMBERS)[3], abs=1e-5)
        assert variance[3] == pytest.approx(without.answer(MEMBERS)[1][3], abs=1e-5)


def test_an_error_that_its_noise_explains_is_plausible() -> None:
    error, noise = np.array([5.0]), np.array([4.0])
    one = MEMBERS.take(np.array([3]))
    expected = error / (1.0 + noise / SoloErrors.nothing(P).prior_variance)
    np.testing.assert_allclose(SoloErrors(P, one, error, noise).mean(one), expected)


def test_sharing_modes_do_not_affect_lone_jobs() -> None:
    mps = Members(OBSERVED.place, OBSERVED.model, OBSERVED.job, OBSERVED.setting + 7, OBSERVED.device)
    solo = SoloErrors(P, OBSERVED, np.array([0.3, 5.0, 0.1]), NOISE)
    np.testing.assert_allclose(solo.mean(mps), solo.mean(OBSERVED))


def test_equal_errors_of_an_architectures_jobs_apply_to_its_others() -> None:
    """Six jobs of two architectures on one device; of the first, two wait for their input."""
    place = np.random.default_rng(4).normal(size=(6, 3))
    model, device = np.array([0, 0, 0, 1, 1, 1]), np.zeros(6, dtype=np.int64)
    members = Members(place, model, np.arange(6), device)
    seen = np.array([0, 1, 3])
    error = np.array([2.4, 2.0, 0.1])
    solo = SoloErrors(P, members.take(seen), error, np.full(3, 0.01), np.array([False, False, True]))
    mean, variance, _ = solo.answer(members)
    assert mean[:2] == pytest.approx(error[:2], abs=0.1)
    assert 1.5 < mean[2] < 2.5
    assert np.abs(mean[3:]).max() < 0.2
    assert (variance[:2] < 0.02).all()
    elsewhere = Members(place[2:3], model[2:3], np.array([2]), np.ones(1, dtype=np.int64))
    assert abs(solo.mean(elsewhere)[0]) < 0.3, "on another device the input may come fast enough"
    one = SoloErrors(P, members.take(seen[1:]), error[1:], np.full(2, 0.01))
    assert abs(one.mean(members)[2]) < 0.1, "one job may be a mistake"
    opposed = SoloErrors(P, members.take(seen), np.array([2.4, -2.0, 0.1]), np.full(3, 0.01))
    assert abs(opposed.mean(members)[2]) < 0.1


def test_another_architectures_implausible_error_stands_for_its_own_job() -> None:
    """Two jobs of the first architecture are as wrong on the device, and one of two jobs of the second."""
    members = Members(np.zeros((4, 3)), np.array([0, 0, 1, 1]), np.arange(4), np.zeros(4, dtype=np.int64))
    solo = SoloErrors(P, members.take(np.arange(3)), np.array([2.4, 2.2, 6.0]), np.full(3, 0.01))
    mean = solo.mean(members)
    assert mean[:2] == pytest.approx([2.4, 2.2], abs=0.1)
    assert mean[2] == 6.0
    assert abs(mean[3]) < 1e-4


@pytest.mark.parametrize("third", [0.0, -2.0, 6.0, 1.5])
def test_an_architecture_whose_jobs_disagree_says_nothing_of_others(third: float) -> None:
    """Two of its jobs are as wrong; the last member is of another architecture."""
    members = Members(np.zeros((4, 3)), np.array([0, 0, 0, 1]), np.arange(4), np.zeros(4, dtype=np.int64))
    solo = SoloErrors(P, members.take(np.arange(3)), np.array([2.4, 2.2, third]), np.full(3, 0.01))
    mean, variance, _ = solo.answer(members)
    assert abs(mean[3]) < 1e-5
    assert variance[3] == pytest.approx(solo.prior_variance, rel=1e-5)


def test_an_error_is_that_of_the_job_with_other_frozen_layers() -> None:
    """The first three members are one job with different frozen layers, far from each other; one is not observed."""
    place, none = 3.0 * np.eye(4), np.zeros(4, dtype=np.int64)
    members = Members(place, none, np.arange(4), none, unfrozen=np.array([0, 0, 0, 3]))
    plausible = SoloErrors(P, members.take(np.array([0])), np.array([0.5]), np.array([0.01]))
    mean, variance, _ = plausible.answer(members)
    assert mean[1] > mean[3] + 0.1
    assert variance[1] < variance[3]
    error = np.array([2.4, -5.0])
    implausible = SoloErrors(P, members.take(np.arange(2)), error, np.full(2, 0.01))
    mean, _, added = implausible.answer(members)
    assert mean.tolist() == pytest.approx([2.4, -5.0, 2.4, 0.0]), "the one nearer to the prediction"
    assert added[2].tolist() == [2.4, 0.0]
    both = SoloErrors(P, members.take(np.arange(2)), np.array([2.4, 0.3]), np.full(2, 0.01))
    assert abs(both.mean(members)[2]) < 0.5, "they contradict each other"


def test_means_of_known_members_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed = np.ones(3, dtype=bool)
    solo = SoloErrors(P, OBSERVED, ERROR, NOISE, confirmed)
    expected, numbers = solo.mean(MEMBERS), np.arange(len(MEMBERS))
    np.testing.assert_allclose(solo.mean_of(MEMBERS.take(numbers[:3]), np.array([2, 0])), expected[[2, 0]])
    np.testing.assert_allclose(solo.mean_of(MEMBERS, numbers), expected)
    same = SoloErrors.after(solo, P, OBSERVED.take(numbers[:3]), ERROR.copy(), NOISE, confirmed)
    monkeypatch.delattr(SoloErrors, "mean")
    np.testing.assert_allclose(same.mean_of(MEMBERS, numbers), expected)
    for error, noise in ((2 * ERROR, NOISE), (ERROR, 2 * NOISE)):
        assert SoloErrors.after(solo, P, OBSERVED, error, noise, confirmed) is not solo
