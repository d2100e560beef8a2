"""Jobs whose observations are implausible as a whole have effects of their own."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.own_effects import OwnEffects
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import variance
from tests.predictor.gaussian_process.test_process import MEMBERS, PAIRS, P, rows_of

EFFECTS = OwnEffects({(1, 6): 4.0, (0, 2): 9.0})


def test_rows_load_on_their_own_jobs_effect() -> None:
    rows = rows_of([(2, 1), (6, 7), (1, 2), (2,)])
    columns = EFFECTS.columns(MEMBERS, rows)
    np.testing.assert_allclose(columns, [[3.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    assert EFFECTS.variance(MEMBERS, rows.own).tolist() == [9.0, 4.0, 0.0, 9.0]
    assert OwnEffects({(0, 2): 9.0, (1, 6): 4.0}) == EFFECTS != OwnEffects()
    assert OwnEffects().columns(MEMBERS, rows).shape == (4, 0)


def process(count: int, most: int, earlier: Process | None = None) -> Process:
    """All pairs three times; what is said of job 2 is absurd."""
    rows = rows_of(PAIRS * 3).take(np.arange(count))
    target = np.random.default_rng(0).normal(0.0, 0.1, 3 * len(PAIRS))[:count]
    target[rows.own == 2] += 8.0
    evidence = Evidence(MEMBERS, rows, target, np.full(count, 0.01), np.arange(count) * 7 % 91)
    return Process(P, evidence, most, earlier)


@pytest.mark.parametrize("most", [30, 89])
def test_inducing_rows_give_nearly_the_exact_answers(most: int) -> None:
    exact, fewer = process(90, 90), process(90, most)
    assert exact.own_effects.names == fewer.own_effects.names == [(0, 2)]
    asked = rows_of([(2, 3), (3, 2), (6, 7), (2, 0, 1)])
    for one, other in zip(exact.answer(MEMBERS, asked), fewer.answer(MEMBERS, asked), strict=True):
        np.testing.assert_allclose(one, other, atol=0.3, rtol=0.1)
    for given in (exact, fewer):
        mean, spread = given.answer(MEMBERS, asked)
        assert mean[0] > 5 > 1 > abs(mean[1])
        joint = given.joint(MEMBERS, asked)
        np.testing.assert_allclose(joint[0], mean)
        np.testing.assert_allclose(np.diag(joint[1]), spread, atol=1e-9)
        part_mean, half, added = given.parts(MEMBERS, asked)
        np.testing.assert_allclose(part_mean, mean)
        np.testing.assert_allclose(added.sum(1), mean, atol=1e-9)
        prior = variance(P, MEMBERS, asked) + given.own_effects.variance(MEMBERS, asked.own)
        np.testing.assert_allclose(prior - half**2 @ given.explained_sign, spread, atol=1e-9)
        table = given.table(MEMBERS, MEMBERS)
        own = np.zeros_like(table)
        given.confirmed.added_to(own, MEMBERS, MEMBERS)
        table -= own
        np.testing.assert_allclose([table[2, 3], table[3, 2], table[6, 7]], mean[:3], atol=1e-9)


def test_further_rows_give_what_all_at_once_give() -> None:
    asked, step = rows_of(PAIRS), process(60, 24)
    for count in range(61, 91):
        step = process(count, 24, step)
    for one, other in zip(step.answer(MEMBERS, asked), process(90, 24).answer(MEMBERS, asked), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


def test_of_too_many_jobs_those_observed_most_have_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(PAIRS * 3)
    few = np.flatnonzero((rows.own != 3) | (np.arange(90) < 30))
    target = np.where(np.isin(rows.own, (2, 3)), 8.0, 0.0)

    def given(order: np.ndarray) -> Process:
        rank = order * 7 % 91
        evidence = Evidence(MEMBERS, rows.take(order), target[order], np.full(len(order), 0.01), rank)
        return Process(P, evidence, 200)

    setting = int(MEMBERS.setting[2])
    assert {(setting, 2), (int(MEMBERS.setting[3]), 3)} <= set(given(few).own_effects.names)
    monkeypatch.setattr("predictor.gaussian_process.process._MOST_EFFECTS", 1)
    for order in (few, few[::-1]):
        assert given(order).own_effects.names == [(setting, 2)]
    mean, _ = given(few).answer(MEMBERS, rows_of([(3, 6)]))
    assert abs(mean[0]) < 4, "the other's are implausible one by one"
