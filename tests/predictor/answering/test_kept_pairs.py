from __future__ import annotations

import numpy as np
import pytest

from models.features import Floats
from predictor.answering.kept_pairs import KeptPairs, PairsWithin
from predictor.examples.examples import Integers
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.synthetic import MODELS


def test_each_pair_is_predicted_once_and_consistently(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answer(rows: Integers) -> Floats:
        asked.append(len(rows))
        return np.asarray(rows[:, :1] * 10.0 + rows)

    kept = KeptPairs(answer)
    rows = np.array([[0, 1], [1, 0], [0, 1], [2, 2]])
    np.testing.assert_array_equal(kept(rows), rows[:, :1] * 10.0 + rows)
    np.testing.assert_array_equal(kept(rows[::-1]), (rows[:, :1] * 10.0 + rows)[::-1])
    assert asked == [3]
    monkeypatch.setattr("predictor.answering.kept_pairs._MOST_KEPT", 2)
    kept(np.array([[3, 4]]))
    kept(rows)
    assert asked == [3, 1, 3]


def test_a_pairs_prediction_does_not_depend_on_its_batch(predictor: Predictor) -> None:
    jobs = [Workload(name, 32) for name in MODELS]
    pairs = [ColocationSet("v100", (a, b)) for a in jobs for b in jobs]
    few = np.concatenate([predictor.predict_arrays([pair]).slowdown for pair in pairs])
    many = predictor.predict_arrays(pairs * 40).slowdown
    np.testing.assert_allclose(many[: len(pairs)], few, rtol=1e-5)


def test_pairs_within_sets_are_answered_once() -> None:
    asked: list[int] = []

    def answer(rows: Integers) -> Floats:
        asked.append(len(rows))
        return np.asarray(rows * 1.0 + rows.sum(1, keepdims=True) * 100.0)

    within = PairsWithin(answer, np.array([[0, 1, 2], [2, 1, 0], [3, 3, -1]]))
    pairs = np.array([[1, 0], [2, 1], [3, 3], [0, 1], [2, 0]])
    np.testing.assert_array_equal(within(pairs), pairs + pairs.sum(1, keepdims=True) * 100.0)
    assert asked == [4]
