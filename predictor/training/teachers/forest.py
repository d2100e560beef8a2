"""A forest over physical features, which teaches the network what to predict between the measured workloads.

With only a handful of measured architectures, a network extrapolates wildly, while a forest stays within the
training range. The forest is too slow to serve, so it labels pairs of synthetic workloads, and the network
learns from these in addition to measurements (distillation, Hinton et al. 2015). The forest has the same
inputs as the network except the embeddings; nothing is measured under co-location.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.features import Floats, edge_features
from predictor.examples.examples import Integers
from predictor.training.teachers.mixtures import MixedPairs, Seen


class ForestTeacher:
    """Extremely randomised trees (Geurts et al. 2006) on both members' features and the pair's edge.

    Args:
        embedding: number of leading columns of the member features that the forest does not see.
        trees: number of trees.
        seed: seed of the forest.
    """

    def __init__(self, embedding: int, trees: int, seed: int) -> None:
        self.embedding = embedding
        self.trees = trees
        self.seed = seed

    def fit(self, ways: list[Seen], log_ratio: Floats) -> ForestTeacher:
        """Learn from the same sets in several views.

        Args:
            ways: the views of the sets.
            log_ratio: [T] target; NaN is ignored.
        """
        rows, targets, busy_rows, busy_targets = [], [], [], []
        for seen in ways:
            own, other = _neighbour(seen.examples.set_index)
            features, demand = seen.variants.features[seen.where], seen.variants.demand[seen.where]
            columns = self.columns(
                features[own], demand[own], features[other], demand[other], seen.setting[own]
            )
            utilization_residual = seen.utilization_residual[seen.examples.set_index[own]]
            usable, measured = (
                ~np.isnan(log_ratio[own]) & ~seen.examples.censored[own],
                ~np.isnan(utilization_residual),
            )
            rows.append(columns[usable])
            targets.append(log_ratio[own][usable])
            busy_rows.append(columns[measured])
            busy_targets.append(utilization_residual[measured])
        self.measured_ = np.array([not np.isnan(seen.utilization_residual).all() for seen in ways])
        self.forest_ = self._forest(rows, targets)
        self.utilization_forest_ = self._forest(busy_rows, busy_targets) if any(map(len, busy_rows)) else None
        return self

    def _forest(self, rows: list[Floats], targets: list[Floats]) -> Any:
        from sklearn.ensemble import ExtraTreesRegressor

        forest = ExtraTreesRegressor(self.trees, min_samples_leaf=3, max_features=0.5, random_state=self.seed)
        return forest.fit(np.concatenate(rows), np.concatenate(targets))

    def columns(
        self, own: Floats, own_demand: Floats, other: Floats, other_demand: Floats, setting: Floats
    ) -> Floats:
        """[N, columns] inputs for N members, each beside another: features, demands, edge, setting."""
        cut = self.embedding
        return np.concatenate(
            [
                own[:, cut:],
                other[:, cut:],
                own_demand,
                other_demand,
                edge_features(own_demand, other_demand),
                setting,
            ],
            1,
        )

    def answer(self, pairs: MixedPairs) -> tuple[Floats, Floats]:
        """[V] log ratios of synthetic members, and [V / 2] utilisation of each pair.

        The latter is relative to that of independent phases, and NaN in views without the members' solo
        utilisation.
        """
        other = pairs.partner
        columns = self.columns(
            pairs.features, pairs.demand, pairs.features[other], pairs.demand[other], pairs.setting
        )
        utilization_residual = np.full(len(columns) // 2, np.nan)
        measured = self.measured_[pairs.way]
        if self.utilization_forest_ is not None and measured.any():
            # A pair has an answer from either member's side.
            answers = self.utilization_forest_.predict(columns[measured])
            utilization_residual[measured[::2]] = answers.reshape(-1, 2).mean(1)
        return self.forest_.predict(columns), utilization_residual


def _neighbour(set_index: Integers) -> tuple[Integers, Integers]:
    """Members of pairs, and the other member of each; larger sets are left to the network."""
    rows = np.flatnonzero(np.bincount(set_index)[set_index] == 2)
    # Members of a set are adjacent, so those of pairs come two by two.
    return rows, rows.reshape(-1, 2)[:, ::-1].ravel()
