from __future__ import annotations

import numpy as np
import pytest

from predictor.learning import pair_answers
from predictor.learning.covariances import Evidence
from predictor.learning.kernel import kernel_of_itself
from predictor.learning.known_members import KnownMembers, NamedMembers
from predictor.learning.members import MemberScale
from predictor.learning.pair_answers import Key, PairAnswers
from predictor.learning.prior_variance import PriorVariance
from predictor.learning.process import Process
from predictor.learning.rows import Rows, variance
from tests.predictor.learning.test_process import MEMBERS, PAIRS, P, rows_of

KEYS: list[Key] = [(0, 1, 2), (3, 4), (5, 1, 1), (6, 7), (2, 0, 1, 3), (4,)]


def known(solo_predicted: bool = False) -> KnownMembers:
    members = KnownMembers(P, MemberScale.fit(np.zeros((2, 3))), None, NamedMembers(MEMBERS))
    members.solo_predicted[:] = solo_predicted
    return members


def told(solo: bool, most: int = 1024) -> Process:
    """A process that has seen pairs, and each member alone where `solo`."""
    rows = rows_of(PAIRS)
    if solo:
        alone = rows_of([(k, -1) for k in range(6)])
        rows = rows.joined(Rows(alone.own, alone.partners, np.ones(6)))
    target = np.random.default_rng(1).normal(0, 0.3, len(rows))
    none = np.zeros(len(rows), dtype=bool)
    noise = np.full(len(rows), 0.01)
    return Process(P, Evidence(MEMBERS, rows, target, noise, none, np.arange(len(rows))), most)


def answers_of(process: Process, members: KnownMembers) -> PairAnswers:
    return PairAnswers(process, PriorVariance(P), members)


@pytest.mark.parametrize("most", [100, 8])
def test_sets_are_put_together_from_pairs(most: int) -> None:
    process, asked = told(solo=False, most=most), rows_of(KEYS)
    mean, spread = process.answer(MEMBERS, asked)
    answers = answers_of(process, known()).beside(KEYS)
    np.testing.assert_allclose(answers.mean, mean, atol=1e-9)
    np.testing.assert_allclose(answers.variance, spread, atol=1e-5)
    np.testing.assert_allclose(answers.prior_variance, variance(P, MEMBERS, asked))
    np.testing.assert_allclose(answers.added.sum(1), mean, atol=1e-3)
    assert answers.solo == [0.0] * len(KEYS)
    assert answers.solo_variance == answers.solo_prior_variance == answers.covariance == [0.0] * len(KEYS)


@pytest.mark.parametrize("most", [100, 8])
def test_a_predicted_solo_step_time_is_answered_beside_any_partners(most: int) -> None:
    process = told(solo=True, most=most)
    own = np.array([key[0] for key in KEYS])
    alone = Rows(own, np.full((len(own), 1), -1), np.ones(len(own)))
    mean, spread = process.answer(MEMBERS, alone)
    answers = answers_of(process, known(solo_predicted=True)).beside(KEYS)
    prior = kernel_of_itself(P).solo[0, 0]
    np.testing.assert_allclose(answers.solo, mean, atol=1e-9)
    np.testing.assert_allclose(answers.solo_variance, spread, rtol=1e-4)
    assert answers.solo_prior_variance == [prior] * len(KEYS)
    np.testing.assert_allclose(answers.added.sum(1), np.add(answers.mean, mean), atol=1e-3)
    measured = answers_of(process, known()).beside(KEYS)
    assert measured.mean == answers.mean
    assert measured.solo == [0.0] * len(KEYS)


@pytest.mark.parametrize("most", [100, 8])
def test_the_covariance_of_both_errors_is_that_of_the_joint_answer(most: int) -> None:
    """Where step times were seen in sets of jobs whose solo step time was predicted."""
    pairs = rows_of(PAIRS)
    rows = Rows(pairs.own, pairs.partners, np.full(len(pairs), 2.0))
    none, noise = np.zeros(len(rows), dtype=bool), np.full(len(rows), 0.01)
    target = np.random.default_rng(1).normal(0, 0.3, len(rows))
    process = Process(P, Evidence(MEMBERS, rows, target, noise, none, np.arange(len(rows))), most)
    answers = answers_of(process, known(solo_predicted=True)).beside(KEYS)
    for key, covariance in zip(KEYS, answers.covariance, strict=True):
        width = max(len(key) - 1, 1)
        beside = Rows(np.array([key[0]]), np.array([key[1:] or (-1,)]), np.zeros(1))
        alone = Rows(np.array([key[0]]), np.full((1, width), -1), np.ones(1))
        _, joint = process.joint(MEMBERS, beside.joined(alone))
        assert covariance == pytest.approx(joint[0, 1], abs=1e-5)
    assert min(answers.covariance) < -0.02


def test_pairs_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    process = told(solo=True)
    expected = answers_of(process, known(solo_predicted=True)).beside(KEYS)
    monkeypatch.setattr(pair_answers, "_KEPT", 12)
    monkeypatch.setattr(pair_answers, "_FIRST", 2)
    few = answers_of(process, known(solo_predicted=True))
    for _ in range(2):
        for k, key in enumerate(KEYS):
            one = few.beside([key])
            assert one.mean == pytest.approx([expected.mean[k]])
            assert one.variance == pytest.approx([expected.variance[k]], abs=1e-6)
            assert one.solo == pytest.approx([expected.solo[k]])
        assert len(few._pairs.place) <= 12
