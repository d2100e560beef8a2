"""Largest slowdowns of pairs, from observed sets that contain them: one job more makes no step faster.

The process attributes what a set does to its pairs in proportion to what it expects of them, and may attribute more to
one than the whole set does. A pair that was itself observed is answered as observed, and an implausible set says nothing
of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.job_keys import places_among
from predictor.gaussian_process.link import from_scale
from predictor.gaussian_process.observed_sets import Names, names_of
from predictor.learning.answers.stated_alone import StatedAlone
from predictor.learning.evidence.step_times import Conditioning

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.learning.answers.pair_answers import Key


class PairBounds:
    """Upper bounds of pairs' slowdowns. There are none under MIG, where another partition may give a job a smaller slice.

    Args:
        given: the process and the observations.
        stated: jobs whose solo step times were stated since, which are not bounded: their slowdowns are others.
    """

    def __init__(self, given: Conditioning, stated: StatedAlone) -> None:
        self._given, self._stated = given, stated

    def __len__(self) -> int:
        """Number of observed sets that they are from."""
        return len(self._given.process.sets)

    @cached_property
    def _bounds(self) -> tuple[Names, Floats]:
        """Names of pairs, ascending, and their largest slowdowns."""
        given, sets = self._given, self._given.process.sets
        seen, evidence, knee = given.seen, given.process.evidence, given.process.parameters.knee
        place = sets.row - evidence.training
        whole = np.array([seen.keys[row][1] != "mig" for row in given.rows[place].tolist()])
        whole &= ~sets.discounted
        slowdown = np.exp(from_scale(given.expected[place] + sets.mean, knee))
        pairs = evidence.rows.take(sets.row[whole]).pairs(evidence.members)
        names = names_of(evidence.members, pairs.own, pairs.partner[:, None])
        bounds = np.maximum(slowdown[whole][pairs.row], 1.0)
        own, partners = seen.own[given.rows], seen.partners[given.rows]
        alone = (partners >= 0).sum(1) == 1
        observed = names_of(evidence.members, own[alone], partners[alone])
        left = ~np.isin(names, observed)
        order = np.lexsort((bounds[left], names[left]))
        names, first = np.unique(names[left][order], return_index=True)
        return names, bounds[left][order][first]

    def of_pairs(self, own: Integers, partner: Integers) -> Floats:
        """[R] largest slowdowns of members beside one partner, by number; inf where nothing says so."""
        names, bounds = self._bounds
        if not len(names) or not len(own):
            return np.full(len(own), np.inf)
        place = places_among(names, names_of(self._given.known.members, own, partner[:, None]))
        free = self._stated.about(own) | self._stated.about(partner)
        return np.where((place >= 0) & ~free, bounds[place], np.inf)

    def of_keys(self, keys: Sequence[Key]) -> list[float]:
        """The same for members with any number of partners; inf unless there is one."""
        result = [np.inf] * len(keys)
        places = [k for k, key in enumerate(keys) if len(key) == 2] if len(self) else []
        if places:
            own, partner = np.array([keys[k] for k in places]).T
            for k, bound in zip(places, self.of_pairs(own, partner).tolist(), strict=True):
                result[k] = bound
        return result

    def within(self, slowdown: Floats, numbers: Integers) -> Floats:
        """[S, M] slowdowns of sets of members `numbers` [S, M], -1 where a set has fewer; those of pairs bounded."""
        if not len(self) or numbers.shape[1] < 2:
            return slowdown
        two = np.flatnonzero((numbers >= 0).sum(1) == 2)
        columns = np.argsort(numbers[two] < 0, axis=1, kind="stable")[:, :2]
        pairs = np.take_along_axis(numbers[two], columns, 1)
        result = slowdown.copy()
        for own, partner in ((0, 1), (1, 0)):
            here = two, columns[:, own]
            result[here] = np.minimum(result[here], self.of_pairs(pairs[:, own], pairs[:, partner]))
        return result
