"""What sets of three or more do beyond their pairs, answered about these sets alone.

The process takes the mean over a member's partners, so what it knows of a set is what it knows of the pairs in it. Three
jobs may overflow a cache that any two fit in. Such an effect of its own has a variance, and is learned from
observations of this set; it says nothing about others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.gaussian_process.confirmed_pairs import OFTEN, median_rows
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.job_keys import keys_of, places_among
from predictor.gaussian_process.kernel import Members
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

Names = NDArray[np.uint64]
"""Hashes of members in sets."""
SET_VARIANCE = 0.02
"""Variance of such effects, on the scale of `predictor.gaussian_process.link`: that of the bundled triples, given all pairs of that
campaign."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@dataclass(frozen=True, slots=True)
class ObservedSets:
    """K members of observed sets, each with two or more partners, ascending by name.

    Attributes:
        name: [K] hashes of setting, job and partners' jobs.
        row: [K] number of the row of evidence that stands for each.
        mean: [K] answer with the effect; effect: [K] expected; share: [K] part of the error of the row that it explains.
        noise: [K] variance of the observation.
        often: [K] whether observed often enough to be believed, whatever is known of the set's pairs.
        discounted: [K] whether it is implausible, so that it says nothing of pairs.
    """

    name: Names
    row: Integers
    mean: Floats
    effect: Floats
    share: Floats
    noise: Floats
    often: Bools
    discounted: Bools

    @classmethod
    def of(cls, evidence: Evidence, noise: Floats, fitted: Callable[[Integers], Floats]) -> ObservedSets:
        """Those among N rows of evidence.

        Rows of the same jobs differ in the solo measurements that were stated. Together they are observations of one
        set, for which the row with the median error stands. An implausible one is believed once it was observed often.

        Args:
            evidence: what was observed, after the training pairs.
            noise: [N] with what was added to discount rows.
            fitted: [R] answers without these effects for rows by number [R].
        """
        if evidence.rows.partners.shape[1] < 2:
            return cls.nothing()
        large = (evidence.rows.partners >= 0).sum(1) > 1
        large[: evidence.training] = False
        row = np.flatnonzero(large)
        if not len(row):
            return cls.nothing()
        rows = evidence.rows.take(row)
        names, group = np.unique(names_of(evidence.members, rows.own, rows.partners), return_inverse=True)
        count = evidence.count[row]
        without = fitted(row)
        error = evidence.target[row] - without
        middle = median_rows(group, error, evidence.rank[row], count)
        often = np.bincount(group, count) >= OFTEN
        row, error, without = row[middle], error[middle], without[middle]
        own_effect = evidence.own_effect[row]
        discounted, noise = noise[row] - evidence.noise[row], evidence.noise[row] - own_effect
        # Of a set observed often, an effect is as large as it looks.
        believed = np.maximum(own_effect, error**2) + discounted
        share = np.where(often, believed / (believed + noise), own_effect / (own_effect + discounted + noise))
        return cls(names, row, without + share * error, share * error, share, noise, often, discounted > 0)

    @classmethod
    def nothing(cls) -> ObservedSets:
        """None."""
        none = np.zeros(0)
        return cls(np.zeros(0, np.uint64), np.zeros(0, np.int64), none, none, none, none, none > 0, none > 0)

    def __len__(self) -> int:
        return len(self.name)

    def changed(self, moved: Floats, fitted: Floats) -> ObservedSets:
        """Changes of the effects if the targets of their rows move [K], and the answers without them by `fitted` [K]."""
        effect = self.share * (moved - fitted)
        return replace(self, mean=fitted + effect, effect=effect)

    def effects(self, members: Members, own: Integers, partners: Integers) -> Floats:
        """[R] effects of members `own` [R] beside `partners` [R, P], by number; -1 where there are fewer."""
        place = self.places(members, own, partners)
        return np.where(place >= 0, self.effect[place], 0.0) if len(self) else np.zeros(len(own))

    def confirmed(self, members: Members, numbers: Integers) -> Bools:
        """[S, M] whether sets of members, by number, were observed often; or [S, 1] if none was."""
        if not len(self) or numbers.shape[1] < 3:
            return np.zeros((len(numbers), 1), dtype=bool)
        result = np.zeros(numbers.shape, dtype=bool)
        for here, own, partners in each_of_three(numbers):
            place = self.places(members, own, partners)
            result[here] = (place >= 0) & self.often[place]
        return result

    def places(self, members: Members, own: Integers, partners: Integers) -> Integers:
        """[R] places among these, -1 where there is none; arguments are those of `effects`."""
        if not len(self) or not len(own):
            return np.full(len(own), -1)
        return places_among(self.name, names_of(members, own, partners))


def each_of_three(
    numbers: Integers,
) -> Iterator[tuple[tuple[Integers, Integers], Integers, Integers]]:
    """Members of sets of three or more, column by column of `numbers` [S, M].

    Returns:
        places [R] in `numbers`, the members [R], and their partners [R, P], -1 where there are fewer.
    """
    large = np.flatnonzero((numbers >= 0).sum(1) > 2)
    some = numbers[large]
    for column in range(some.shape[1] if len(large) else 0):
        here = np.flatnonzero(some[:, column] >= 0)
        own, partners = some[here, column], np.delete(some[here], column, 1)
        yield (large[here], np.full(len(here), column)), own, partners


def names_of(members: Members, own: Integers, partners: Integers) -> Names:
    """[R] hashes of setting, job and the partners' jobs [R, P] in any order; -1 is none."""
    return hashes_of(keys_of(members, own), np.where(partners >= 0, members.job[partners], -1))


def hashes_of(first: Integers, others: Integers) -> Names:
    """[R] hashes of a number each and of others [R, P] in any order; -1 is none."""
    # Not from 0, which a first number of 0 would leave as it is.
    result = _mixed(np.full(len(first), _MULTIPLIER), first)
    for column in np.sort(others, axis=1).T:
        result = np.where(column >= 0, _mixed(result, column), result)
    return result


def _mixed(hashes: Names, numbers: Integers) -> Names:
    result = (hashes ^ numbers.astype(np.uint64)) * _MULTIPLIER
    return np.asarray(result ^ (result >> _SHIFT))
