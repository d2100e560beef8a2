"""GCN and GAT as contenders: encoder, features and training rows of E-GGAT with another set network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle

if TYPE_CHECKING:
    from models.colocation_network import NetworkConfig
    from predictor.config import TrainingConfig


class ConvolutionContender:
    """An ensemble of `models.baselines.gnn.SetConvolutions`.

    Args:
        kind: `gcn` or `gat`.
        network: its encoder and dropout are used.
        training: seeds, ensemble size, epochs and learning rate, as for E-GGAT.
    """

    def __init__(self, kind: str, network: NetworkConfig, training: TrainingConfig) -> None:
        self.kind, self.network, self.training = kind, network, training

    def fit(self, train: Bundle, seed: int = 0) -> ConvolutionContender:
        """Fit on every set with and without its members' solo measurements; censored rows are skipped."""
        import torch
        from torch import nn

        from models.baselines.gnn import SetConvolutions
        from models.colocation_network import member_width
        from predictor.examples.examples import examples_of
        from predictor.examples.featurizer import shared_featurizer
        from predictor.fitted.model import CotenantModel, Scaler
        from predictor.training.fit import solo_examples
        from predictor.training.networks import fit_encoder
        from predictor.training.targets import scaler_of

        config, featurizer = replace(self.training, seed=seed), shared_featurizer()
        examples = examples_of(train.colocation, train.solo)
        encoder = fit_encoder(solo_examples(train.solo), featurizer, self.network, config)
        campaigns = tuple(sorted(set(examples.campaign)))
        self.model_ = CotenantModel(
            self.network, campaigns, encoder, [], Scaler.neutral(member_width(self.network)), featurizer
        )
        both = (examples, examples.without_solo())
        self.model_.scaler = scaler_of(self.model_, both)
        inputs = [self.model_.inputs(e) for e in both]
        target = torch.tensor(examples.padded(np.log(examples.ratio)), dtype=torch.float32)
        known = torch.from_numpy(examples.padded(examples.scored))
        width = inputs[0].member.shape[2] + inputs[0].setting.shape[1]
        self.networks_ = []
        for number in range(config.ensemble):
            torch.manual_seed(seed * 1000 + number)
            network = SetConvolutions(self.kind, width, dropout=self.network.dropout)
            optimizer = torch.optim.AdamW(
                network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
            )
            for _ in range(config.epochs):
                optimizer.zero_grad()
                losses = [
                    nn.functional.smooth_l1_loss(network(sets)[known], target[known], beta=config.beta)
                    for sets in inputs
                ]
                torch.stack(losses).mean().backward()
                optimizer.step()
            self.networks_.append(network.eval())
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`."""
        import torch

        from predictor.examples.examples import examples_of, in_order_of

        examples = examples_of(test.colocation, test.solo)
        sets = self.model_.inputs(examples)
        with torch.no_grad():
            ratio = (
                torch.stack([network(sets) for network in self.networks_])
                .mean(0)
                .exp()
                .numpy()[examples.places]
            )
        return in_order_of(test.colocation, ratio)
