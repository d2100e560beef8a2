"""Pairs of synthetic workloads: mixtures of measured ones on the same device.

After Zhang et al., mixup, ICLR 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.features import Floats
from predictor.examples.examples import Examples, Integers, MemberVariants

# Share of the synthetic pairs that are moved to a GPU of the catalogue.
MOVED = 0.25


@dataclass(frozen=True, slots=True)
class Seen:
    """Measured sets in one view (with or without solo measurements).

    Attributes:
        examples: the sets.
        variants: their distinct members.
        where: [T] number of each member in `variants`.
        setting: [T, settings].
        utilization_residual: [S] measured utilisation minus that of independent phases; NaN if not measured.
    """

    examples: Examples
    variants: MemberVariants
    where: Integers
    setting: Floats
    utilization_residual: Floats


@dataclass(frozen=True, slots=True)
class MixedPairs:
    """Synthetic members; each two consecutive ones form a pair.

    Attributes:
        features: [V, member_width]; demand: [V, DEMAND_WIDTH]; setting: [V, settings].
        way: [V] number of the pair's view.
    """

    features: Floats
    demand: Floats
    setting: Floats
    way: Integers

    @property
    def partner(self) -> Integers:
        """[V] number of the other member."""
        return np.arange(len(self.features)) ^ 1


def mix(ways: list[Seen], gpus: Floats, count: int, seed: int, number: int = 0) -> MixedPairs:
    """Make `count` synthetic pairs per view; both members of a pair come from one device and setting.

    Half of the members lie between two measured ones. The others take each number at random from one of the
    two, which teaches the network the forest's answers outside the measured range, too. Some pairs are moved
    to another GPU.

    Args:
        ways: views of the same sets.
        gpus: [G, D] device features (the last columns of the member features) of GPUs to which pairs are
            moved.
        count: number of pairs per view.
        seed: seed of the mixtures.
        number: number of the batch; each holds different pairs.
    """
    rng = np.random.default_rng([seed, number])
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
        rows = np.array([rng.choice(pools[pool], 4) for pool in chosen]).reshape(-1, 2)
        first, second = where[rows[:, 0]], where[rows[:, 1]]
        between = rng.random(len(rows)) < 0.5
        share = rng.beta(0.7, 0.7, len(rows))
        odds = rng.random(len(rows))
        for parts, numbers in ((features, variants.features), (demand, variants.demand)):
            taken = rng.random((len(rows), numbers.shape[1])) < odds[:, None]
            taken = np.where(between[:, None], share[:, None], taken)
            parts.append(taken * numbers[first] + (1 - taken) * numbers[second])
        if len(gpus):
            moved = np.repeat(rng.random(count) < MOVED, 2)
            device = np.repeat(rng.integers(len(gpus), size=count), 2)
            features[-1][moved, -gpus.shape[1] :] = gpus[device[moved]]
        settings.append(seen.setting[np.repeat([pools[pool][0] for pool in chosen], 2)])
    return MixedPairs(
        np.concatenate(features),
        np.concatenate(demand),
        np.concatenate(settings),
        np.repeat(np.arange(len(ways)), 2 * count),
    )
