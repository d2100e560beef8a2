"""The process as a contender: predicts sets of a model that it never saw from those of others."""

from __future__ import annotations

import numpy as np

from datasets.bundle import Bundle
from datasets.splits import make_split, select_sets
from predictor.evaluation.protocols.process import ProcessContender
from tests.predictor.synthetic import graph_source, tables


def test_beats_the_mean_and_keeps_row_order(monkeypatch) -> None:
    from predictor.examples.featurizer import Featurizer

    monkeypatch.setattr("predictor.examples.featurizer.shared_featurizer", lambda: Featurizer(graph_source))
    colocation, solo = tables()
    fold = make_split(colocation, "by-pair")[0]
    train, test = (select_sets(colocation, ids) for ids in (fold.train_set_ids, fold.test_set_ids))
    test = test.sample(frac=1.0, random_state=1)
    contender = ProcessContender().fit(Bundle("throughput_ratio", train, solo))
    asked = Bundle("throughput_ratio", test, solo)
    predicted = contender.predict(asked.without_targets())
    measured = asked.y
    known = ~np.isnan(measured)
    error = np.abs(predicted - measured)[known].mean()
    assert error < np.abs(train.throughput_ratio.mean() - measured)[known].mean()
