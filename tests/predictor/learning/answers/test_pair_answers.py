from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from models.features import Floats
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.known_members import KnownMembers, NamedMembers
from predictor.gaussian_process.leave_one_out import calibrated
from predictor.gaussian_process.members import MemberScale
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import variance
from predictor.learning.answers import cached_pairs, pair_answers
from predictor.learning.answers.corrector import Shift
from predictor.learning.answers.pair_answers import Key, PairAnswers, Places
from predictor.learning.answers.stated_alone import StatedAlone
from predictor.learning.evidence.measured_alone import MeasuredAlone
from predictor.learning.evidence.observed import Observed
from predictor.learning.evidence.prior import Prior
from predictor.learning.evidence.solo_errors import SoloErrors
from predictor.learning.evidence.solo_limits import SoloLimits
from predictor.learning.evidence.step_times import Conditioning
from tests.predictor.gaussian_process.test_process import MEMBERS, PAIRS, P, rows_of

KEYS: list[Key] = [(0, 1, 2), (3, 4), (5, 1, 1), (6, 7), (2, 0, 1, 3), (4,)]


def known(solo_predicted: bool = False) -> KnownMembers:
    members = KnownMembers(P, MemberScale.fit(np.zeros((2, 3))), None, NamedMembers(MEMBERS))
    members.solo_predicted[:] = solo_predicted
    return members


def told(most: int = 1024, target: Floats | None = None) -> Process:
    """A process with observed pairs."""
    rows = rows_of(PAIRS)
    if target is None:
        target = np.random.default_rng(1).normal(0, 0.3, len(rows))
    noise, steep = np.full(len(rows), 0.01), np.linspace(1.0, 3.0, len(rows))
    evidence = Evidence(MEMBERS, rows, target, noise, np.arange(len(rows)), steep=steep)
    return Process(P, evidence, most)


def alone() -> SoloErrors:
    """Three members were observed alone."""
    return SoloErrors(P, MEMBERS.take(np.array([0, 2, 5])), np.array([0.2, -0.3, 0.1]), np.full(3, 0.02))


def answers_of(
    process: Process, members: KnownMembers, solo: SoloErrors | None = None, shares: Floats | None = None
) -> PairAnswers:
    """Without `shares`, what the jobs of `solo` add follows what the rows add."""
    solo = solo or SoloErrors.nothing(P)
    used = len(process.observed)
    if shares is None:
        shares = np.eye(len(solo), used + len(solo), used)
    unlimited = SoloLimits(Observed.nothing(), np.arange(len(MEMBERS)), members, solo)
    nowhere = np.zeros(0, np.int64)
    given = Conditioning(process, Observed.nothing(), nowhere, np.zeros(0), members)
    stated = StatedAlone(given, MeasuredAlone(), None)
    places = Places(np.arange(used), nowhere, np.full(len(process.sets), -1))
    return PairAnswers(process, solo, Prior.nothing(P), members, places, shares, unlimited, stated)


def beside(answers: PairAnswers, keys: Sequence[Key] = KEYS) -> SimpleNamespace:
    """Corrections by field, and what each observation adds to them."""
    shifts, added = answers.beside(keys)
    return SimpleNamespace(
        added=added, **{name: [getattr(shift, name) for shift in shifts] for name in Shift._fields}
    )


@pytest.mark.parametrize("most", [100, 8])
def test_sets_are_composed_from_pairs(most: int) -> None:
    process, asked = told(most), rows_of(KEYS)
    mean, spread = process.answer(MEMBERS, asked)
    prior = variance(P, MEMBERS, asked)
    answers = beside(answers_of(process, known()))
    np.testing.assert_allclose(answers.excess, mean, atol=1e-9)
    np.testing.assert_allclose(answers.prior_variance, prior)
    expected = [
        calibrated(after, before, process.variance_ratio) if before else 0.0
        for after, before in zip(spread, prior, strict=True)
    ]
    np.testing.assert_allclose(answers.variance, expected, atol=1e-5)
    np.testing.assert_allclose(answers.added.sum(1), mean, atol=1e-3)
    assert answers.solo == [0.0] * len(KEYS)
    assert answers.solo_variance == answers.solo_prior_variance == answers.covariance == [0.0] * len(KEYS)


def test_variances_are_reduced_by_what_observations_explain() -> None:
    assert calibrated(0.5, 0.5, 0.3) == 0.5
    assert calibrated(0.0, 0.5, 0.3) == 0.0
    assert calibrated(0.1, 0.5, 0.5) == pytest.approx(0.1 * (1 - 0.8 * 0.5))
    assert calibrated(0.1, 0.5, 2.0) == pytest.approx(0.1 * 1.8)
    # The effect of a job that cannot be true is not explained by others.
    assert calibrated(2.0, 0.5, 3.0) == 2.0


@pytest.mark.parametrize("most", [100, 8])
def test_a_predicted_solo_step_time_is_corrected_for_any_partners(most: int) -> None:
    process, solo = told(most), alone()
    mean, spread, _ = solo.answer(MEMBERS.take(np.array([key[0] for key in KEYS])))
    answers = beside(answers_of(process, known(solo_predicted=True), solo))
    np.testing.assert_allclose(answers.solo, mean, atol=1e-9)
    np.testing.assert_allclose(answers.solo_variance, spread, rtol=1e-4)
    assert answers.solo_prior_variance == [solo.prior_variance] * len(KEYS)
    np.testing.assert_allclose(answers.added.sum(1), np.add(answers.excess, mean), atol=1e-3)
    measured = beside(answers_of(process, known(), solo))
    assert measured.excess == answers.excess
    assert measured.solo == [0.0] * len(KEYS)


@pytest.mark.parametrize("most", [100, 8])
def test_slowdowns_absorb_an_error_of_the_solo_step_time(most: int) -> None:
    """By as much as means move if all targets of the job do, none of which contradicts the others."""
    process, solo = told(most, np.random.default_rng(1).normal(0, 0.1, len(PAIRS))), alone()
    assert (process.noise == process.evidence.noise).all()
    members = known(solo_predicted=True)
    answers = beside(answers_of(process, members, solo))
    without = beside(answers_of(process, known(), solo))
    evidence = process.evidence
    for k, key in enumerate(KEYS):
        changed = evidence.target + np.where(evidence.rows.own == key[0], 0.01 * evidence.steep, 0.0)
        moved, _ = told(most, changed).answer(MEMBERS, rows_of([key]))
        absorbed = (moved[0] - answers.excess[k]) / 0.01
        assert answers.covariance[k] == pytest.approx(-absorbed * answers.solo_variance[k], abs=2e-3)
        more = answers.variance[k] - without.variance[k]
        assert more == pytest.approx(absorbed**2 * answers.solo_variance[k], abs=5e-3)
    assert min(answers.covariance) < -0.02


def test_influences_are_summed_if_a_row_affects_both() -> None:
    process, solo = told(), alone()
    used = len(process.used)
    shares = np.zeros((3, used + 2))
    shares[0, [3, 4]], shares[[1, 2], [used, used + 1]] = 0.5, 1.0
    members = known(solo_predicted=True)
    apart = beside(answers_of(process, members, solo)).added
    together = beside(answers_of(process, members, solo, shares)).added
    assert together.shape[1] == used + 2
    half = apart[:, [used]] / 2
    np.testing.assert_allclose(together[:, 3:5], apart[:, 3:5] + half, atol=1e-5)
    np.testing.assert_allclose(together[:, used:], apart[:, used + 1 :], atol=1e-6)


def test_the_pair_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    process, solo = told(), alone()
    expected = beside(answers_of(process, known(solo_predicted=True), solo))
    monkeypatch.setattr(pair_answers, "_KEPT", 12)
    monkeypatch.setattr(cached_pairs, "FIRST", 2)
    few = answers_of(process, known(solo_predicted=True), solo)
    for _ in range(2):
        for k, key in enumerate(KEYS):
            one = beside(few, [key])
            assert one.excess == pytest.approx([expected.excess[k]])
            assert one.variance == pytest.approx([expected.variance[k]], abs=1e-6)
            assert one.solo == pytest.approx([expected.solo[k]])
        assert len(few._pairs.place) <= 12
