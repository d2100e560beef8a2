from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from datasets.bundle import Bundle
from predictor.evaluation.protocols.convolutions import ConvolutionContender
from predictor.evaluation.protocols.registry import contenders
from predictor.examples import featurizer
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, tables


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_learns_and_keeps_the_table_s_order(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiling.capture.graph_for", graph_source)
    featurizer.shared_featurizer.cache_clear()
    try:
        colocation, solo = tables()
        bundle = Bundle("throughput_ratio", colocation, solo)
        training = replace(TRAINING, epochs=60)
        fitted = ConvolutionContender(kind, NETWORK, training).fit(bundle)
        guess = fitted.predict(bundle.without_targets())
        assert np.abs(guess - bundle.y).mean() < 0.5 * np.abs(bundle.y - bundle.y.mean()).mean()
        shuffled = colocation.sample(frac=1, random_state=0)
        again = fitted.predict(Bundle("throughput_ratio", shuffled, solo).without_targets())
        np.testing.assert_allclose(again, guess[shuffled.index], rtol=1e-5)
    finally:
        featurizer.shared_featurizer.cache_clear()


def test_take_part_in_two_protocols_only() -> None:
    for contender in contenders(["gcn", "gat"]):
        assert contender.protocols == {"lucid-by-model", "gavel2020-by-model"}
        assert contender.targets == ("throughput_ratio",)
