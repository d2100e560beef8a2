"""A forest over physical features that teaches the network what to answer between the measured workloads.

With a handful of measured architectures a network extrapolates wildly where a forest stays within what it has seen. The
forest is too slow to serve; so it labels pairs of invented workloads (mixtures of measured ones on the same device), and
the network learns from these beside the measurements (distillation, Hinton et al. 2015; mixtures after Zhang et al.,
mixup, ICLR 2018). The forest sees what the network sees, embeddings apart: nothing measured under co-location.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.features import Floats, edge_features
from predictor.examples.examples import Examples, Integers, MemberVariants

# Share of the invented pairs that are moved to a GPU of the catalogue.
MOVED = 0.25


@dataclass(frozen=True, slots=True)
class MixedSets:
    """Invented pairs and what the forest says of them.

    Attributes:
        features: [V, member_width] and demand [V, DEMAND_WIDTH] of the invented members, two in a row to a set.
        setting: [V, settings].
        log_ratio: [V] the forest's answer.
        utilization_residual: [V / 2] its answer to what the pair's utilisation exceeds that of independent phases by; NaN where pairs are
            seen without the utilisation of their members alone.
    """

    features: Floats
    demand: Floats
    setting: Floats
    log_ratio: Floats
    utilization_residual: Floats


@dataclass(frozen=True, slots=True)
class Seen:
    """Measured sets, seen in one way (with solo measurements or without).

    Attributes:
        examples: the sets.
        variants: their distinct members.
        where: [T] which of these each member is.
        setting: [T, settings].
        utilization_residual: [S] measured utilisation beyond that of independent phases; NaN where it was not measured.
    """

    examples: Examples
    variants: MemberVariants
    where: Integers
    setting: Floats
    utilization_residual: Floats


class ForestTeacher:
    """Extremely randomised trees (Geurts et al. 2006) on both members' features, their demands, and the pair's edge.

    Args:
        embedding: leading columns of the member features that the forest does not see.
        gpus: [G, D] device features, the last columns of the member features, of GPUs that invented pairs are moved to.
        trees: number of trees.
        seed: of the forest and of the mixtures.
    """

    def __init__(self, embedding: int, gpus: Floats, trees: int, seed: int) -> None:
        self.embedding = embedding
        self.gpus = gpus
        self.trees = trees
        self.seed = seed

    def fit(self, ways: list[Seen], log_ratio: Floats) -> ForestTeacher:
        """Learn from the same sets, seen in several ways.

        Args:
            ways: the sets as they are seen.
            log_ratio: [T] target; NaN is left out.
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
        """[N, columns] what the forests see of N members, each beside another: features, demands, edge, setting."""
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

    def mix(self, ways: list[Seen], count: int, number: int = 0) -> MixedSets:
        """`count` invented pairs per way; both members of a pair stem from one device and setting.

        Half of the members lie between two measured ones. The others take every number from one or the other at random,
        which teaches the network what the forest answers outside of what was measured, too. Some pairs are on another GPU.

        Args:
            number: of the batch; each holds other pairs.
        """
        rng = np.random.default_rng([self.seed, number])
        features: list[Floats] = []
        demand: list[Floats] = []
        settings: list[Floats] = []
        for seen in ways:
            examples, variants, where = seen.examples, seen.variants, seen.where
            groups: dict[tuple[str, ...], list[int]] = {}
            for row in range(len(where)):
                key = (examples.devices[row], examples.mode[row], examples.campaign[row])
                groups.setdefault(key, []).append(row)
            pools = list(groups.values())
            weight = np.array([len(pool) for pool in pools], dtype=float)
            chosen = rng.choice(len(pools), count, p=weight / weight.sum())
            rows = np.array([rng.choice(pools[number], 4) for number in chosen]).reshape(-1, 2)
            first, second = where[rows[:, 0]], where[rows[:, 1]]
            between = rng.random(len(rows)) < 0.5
            share = rng.beta(0.7, 0.7, len(rows))
            odds = rng.random(len(rows))
            for parts, numbers in ((features, variants.features), (demand, variants.demand)):
                taken = rng.random((len(rows), numbers.shape[1])) < odds[:, None]
                taken = np.where(between[:, None], share[:, None], taken)
                parts.append(taken * numbers[first] + (1 - taken) * numbers[second])
            if len(self.gpus):
                moved = np.repeat(rng.random(count) < MOVED, 2)
                device = np.repeat(rng.integers(len(self.gpus), size=count), 2)
                features[-1][moved, -self.gpus.shape[1] :] = self.gpus[device[moved]]
            settings.append(seen.setting[np.repeat([pools[number][0] for number in chosen], 2)])
        mixed = np.concatenate(features), np.concatenate(demand), np.concatenate(settings)
        partner = np.arange(len(mixed[0])) ^ 1
        columns = self.columns(mixed[0], mixed[1], mixed[0][partner], mixed[1][partner], mixed[2])
        utilization_residual = np.full(len(columns) // 2, np.nan)
        if self.utilization_forest_ is not None:
            measured = np.repeat([not np.isnan(seen.utilization_residual).all() for seen in ways], count)
            # A pair is seen from either side.
            answers = self.utilization_forest_.predict(columns[np.repeat(measured, 2)])
            utilization_residual[measured] = answers.reshape(-1, 2).mean(1)
        return MixedSets(*mixed, self.forest_.predict(columns), utilization_residual)


def _neighbour(set_index: Integers) -> tuple[Integers, Integers]:
    """Members of pairs, and the other member of each; larger sets are left to the network."""
    rows = np.flatnonzero(np.bincount(set_index)[set_index] == 2)
    # The members of a set stand together, so those of the pairs come two by two.
    return rows, rows.reshape(-1, 2)[:, ::-1].ravel()
