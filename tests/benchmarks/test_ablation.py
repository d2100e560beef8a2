"""The encoder that the variants of an ablation share."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.ablation import SharedEncoder
from datasets.bundle import Bundle
from predictor.config import TrainingConfig
from predictor.evaluation.protocols.networks import NetworkContender, make_contender
from predictor.training import networks
from tests.models.baselines.test_baselines import SOLO, TRAIN


def test_each_seed_has_its_own_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    given: list[Any] = []

    def fit_encoder(_solo: Any, _featurizer: Any, _network: Any, config: TrainingConfig) -> object:
        fitted.append(config.seed)
        return object()

    monkeypatch.setattr(networks, "fit_encoder", fit_encoder)
    monkeypatch.setattr(NetworkContender, "fit", lambda _self, _train, _seed, encoder: given.append(encoder))
    monkeypatch.setattr(SharedEncoder, "last", None)
    train = Bundle("throughput_ratio", TRAIN, SOLO)
    for seed in (0, 0, 3):
        SharedEncoder(make_contender()).fit(train, seed)
    assert fitted == [0, 3]
    assert given[0] is given[1] is not given[2]
