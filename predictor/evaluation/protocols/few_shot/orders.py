"""Order in which sets are observed, one per device in each round: random, or chosen by the probe rule."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from models.features import Floats
from predictor.examples.examples import Examples, Integers
from predictor.gaussian_process.expectation import Expectation

PROBES = ("random", "chosen")


def devices_of(examples: Examples) -> dict[tuple[str, str], list[Integers]]:
    """Map device and campaign to the sets with a measured point there, as row numbers."""
    sets: dict[tuple[str, str], list[Integers]] = {}
    points = examples.scored
    for number in range(len(examples.set_ids)):
        rows = np.flatnonzero(examples.set_index == number)
        measured = rows[points[rows]]
        if len(measured):
            sets.setdefault((examples.devices[rows[0]], examples.campaign[rows[0]]), []).append(measured)
    return sets


def random_orders(examples: Examples, most: int, seed: int) -> list[Integers]:
    """Rows observed in each of `most` rounds: one set per device, sampled without replacement."""
    rng = np.random.default_rng(seed)
    drawn = [[sets[k] for k in rng.permutation(len(sets))[:most]] for sets in devices_of(examples).values()]
    return [
        np.concatenate([d[k] for d in drawn if k < len(d)] or [np.zeros(0, np.int64)]) for k in range(most)
    ]


class Chooser(Protocol):
    """A learner that knows its uncertainty, as the probe rule requires."""

    observed: Floats
    noise: Floats

    def expectation(self, seen: Integers) -> Expectation:
        """Expectation of the test rows after observing those numbered `seen`."""
        ...

    def expected_noise(self, expected: Expectation) -> Floats:
        """[T] variance of an observation at its expected value."""
        ...

    def gains(self, expected: Expectation, unseen: Floats) -> Floats:
        """[T] weights of rows in the probe rule."""
        ...


def chosen_orders(examples: Examples, most: int, learner: Chooser) -> list[Integers]:
    """Like `random_orders`, but chosen by the probe rule, which knows the observations of earlier rounds."""
    left = {device: list(sets) for device, sets in devices_of(examples).items()}
    points, rounds = examples.scored, []
    seen = np.zeros(0, np.int64)
    expected = learner.expectation(seen)
    for _ in range(most):
        this: list[Integers] = []
        for sets in left.values():
            if not sets:
                continue
            unseen = points.astype(float)
            unseen[seen] = 0.0
            number = expected.best(sets, learner.expected_noise(expected), learner.gains(expected, unseen))
            this.append(sets.pop(number))
            seen = np.concatenate([seen, this[-1]])
            expected = expected.observe(this[-1], learner.observed[this[-1]], learner.noise[this[-1]])
        rounds.append(np.concatenate(this) if this else np.zeros(0, np.int64))
    return rounds
