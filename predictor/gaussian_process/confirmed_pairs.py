"""Pairs that were observed often but contradict everything else: what was observed is answered about them alone.

A discounted observation has an effect of its own, whose variance is the noise that it was given: the process marginalises
over it. Where a pair was observed often, this effect is what the pair does, and part of the answers about it. It says
nothing about other pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.job_keys import JOBS, keys_of, places_among
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.rows import Rows

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

OFTEN = 3
"""Observations of a set from which on an implausible one is believed."""


@dataclass(frozen=True, slots=True)
class ConfirmedPairs:
    """P such pairs, ascending.

    Attributes:
        owner: [P] setting and job (`keys_of`); partner: [P] job beside it.
        row: [P] number of the row of evidence that stands for the pair.
        effect: [P] expected; share: [P] part of the error of the row that it explains.
        noise: [P] variance of the observation; steep: [P] see `Evidence`.
    """

    owner: Integers
    partner: Integers
    row: Integers
    effect: Floats
    share: Floats
    noise: Floats
    steep: Floats

    @classmethod
    def of(cls, evidence: Evidence, noise: Floats, fitted: Callable[[Integers], Floats]) -> ConfirmedPairs:
        """Those among N rows of evidence.

        Rows of the same jobs differ in the solo measurements that were stated. Together they are observations of one
        pair, for which the row with the median error stands.

        Args:
            evidence: what was observed, after the training pairs.
            noise: [N] with what was added to discount rows.
            fitted: [R] answers without these effects for rows by number [R].
        """
        pairs = (evidence.rows.partners >= 0).sum(1) == 1
        pairs[: evidence.training] = False
        discounted = pairs & (noise > evidence.noise)
        if not discounted.any():
            return cls.nothing()
        owner = keys_of(evidence.members, evidence.rows.own)
        row = np.flatnonzero(pairs & np.isin(owner, owner[discounted]))
        owner, partner = owner[row], evidence.members.job[evidence.rows.partners[row].max(1)]
        key = np.unique(owner, return_inverse=True)[1] * JOBS + partner
        _, pair = np.unique(key, return_inverse=True)
        count = evidence.count[row]
        often = (np.bincount(pair, count) >= OFTEN) & (np.bincount(pair, discounted[row]) > 0)
        here = often[pair]
        row, owner, partner, pair, count = row[here], owner[here], partner[here], pair[here], count[here]
        error = evidence.target[row] - fitted(row)
        middle = median_rows(pair, error, evidence.rank[row], count)
        middle = middle[discounted[row[middle]]]
        row, owner, partner, error = (values[middle] for values in (row, owner, partner, error))
        share = 1.0 - evidence.noise[row] / noise[row]
        return cls(owner, partner, row, share * error, share, evidence.noise[row], evidence.steep[row])

    @classmethod
    def nothing(cls) -> ConfirmedPairs:
        """None."""
        whole, empty = np.zeros(0, np.int64), np.zeros(0)
        return cls(whole, whole, whole, empty, empty, empty, empty)

    def __len__(self) -> int:
        return len(self.row)

    def places(self, members: Members, own: Integers, partner: Integers) -> Integers:
        """[R] place of each member beside a partner, by number, among these pairs; -1 if it is none of them."""
        if not len(self):
            return np.full(len(own), -1)
        return np.where(partner >= 0, self._found(keys_of(members, own), members.job[partner]), -1)

    def within(self, members: Members, rows: Rows) -> Floats:
        """[R] means of the effects over the partners of rows of `members`."""
        if not len(self):
            return np.zeros(len(rows))
        pairs = rows.pairs(members)
        place = self.places(members, pairs.own, pairs.partner)
        effect = np.where(place >= 0, self.effect[place], 0.0)
        return np.asarray(np.bincount(pairs.row, pairs.share * effect, len(rows)), np.float64)

    def changed(self, moved: Floats, fitted: Floats) -> ConfirmedPairs:
        """Changes of the effects if the targets of their rows move [P], and the answers without them by `fitted` [P]."""
        return replace(self, effect=self.share * (moved - fitted))

    def added_to(self, means: Floats, own: Members, partners: Members) -> None:
        """Add the effects to [V, W] means of every member beside every partner."""
        owner = keys_of(own, np.arange(len(own)))
        rows = np.flatnonzero(np.isin(owner, self.owner))
        if len(rows):
            place = self._found(owner[rows, None], partners.job[None])
            means[rows] += np.where(place >= 0, self.effect[place], 0.0)

    def _found(self, owner: Integers, partner: Integers) -> Integers:
        """Places of setting and job (`keys_of`) beside a partner's job, which broadcast; -1 where there is none."""
        names, number = np.unique(self.owner, return_inverse=True)
        # Jobs are fewer than JOBS, so both numbers fit into one; of an unknown owner, that is negative.
        return places_among(number * JOBS + self.partner, places_among(names, owner) * JOBS + partner)


def median_rows(groups: Integers, error: Floats, rank: Integers, count: Floats) -> Integers:
    """Place of the row with the (lower) median error in each group 0, 1, ... of rows [R], which count `count` [R] times.

    Equal errors are ordered by `rank` [R].
    """
    if not len(groups):
        return np.zeros(0, np.int64)
    order = np.lexsort((rank, error, groups))
    groups, count = groups[order], count[order]
    start = np.flatnonzero(np.diff(groups, prepend=-1))
    total = np.cumsum(count)
    before = (total - count)[start]
    half = (before + np.append(before[1:], total[-1])) / 2
    return order[np.searchsorted(total, half)]
