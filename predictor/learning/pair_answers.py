"""What the process says of members beside partners, put together from pairs, so that a new set of known jobs costs a mean and no solve.

A call asks about few sets, where numpy takes longer to begin than to count: what is one number is a Python number here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from models.features import Floats
from predictor.learning.kernel import kernel_of_itself
from predictor.learning.known_members import KnownMembers
from predictor.learning.prior_variance import PriorVariance
from predictor.learning.process import Process
from predictor.learning.rows import Rows

# Numbers of a member and of its partners, those ascending.
Key = tuple[int, ...]
# Pairs that are kept; a pair is some kilobytes.
_KEPT = 8192
_FIRST = 256
_ALONE = -1
# The row of no pair, all zeros: partners that a member has fewer than others of the call.
_NOBODY = 0


@dataclass(frozen=True, slots=True)
class Answers:
    """Of R keys.

    Attributes:
        mean, variance, prior_variance: [R] of the log excess; 0 for a member without partners, which is not moved.
        solo: [R] mean of the log solo step time; solo_shrink: [R] by how much its interval narrows.
        added: [R, used] what each row of the evidence adds to both means.
    """

    mean: list[float]
    variance: list[float]
    prior_variance: list[float]
    solo: list[float]
    solo_shrink: list[float]
    added: Floats


@dataclass(frozen=True, slots=True)
class _Own:
    """A member by itself: `Answers` of its solo step time, and what the job's own effect adds to the variance."""

    solo: float
    solo_shrink: float
    added: Floats
    variance: float


class _Pairs:
    """Rows of pairs; grows in place, so that who holds `rows` can go on reading what it has found there.

    Args:
        width: of a row.

    Attributes:
        rows: [capacity, width].
        place: row of each pair.
        mean, between: [P] mean of a pair, and prior covariance of any member beside the one with the same beside the other.
    """

    def __init__(self, width: int) -> None:
        self.rows = np.zeros((_FIRST, width), np.float32)
        self.place: dict[tuple[int, int], int] = {}
        self.mean, self.between = [0.0], [0.0]

    def add(
        self, pairs: Sequence[tuple[int, int]], rows: Floats, mean: Floats, between: Floats
    ) -> None:
        start = len(self.mean)
        end = start + len(pairs)
        if end > len(self.rows):
            larger = np.zeros((max(end, 2 * len(self.rows)), self.rows.shape[1]), np.float32)
            larger[:start] = self.rows[:start]
            self.rows = larger
        self.rows[start:end] = rows
        self.mean += mean.tolist()
        self.between += between.tolist()
        self.place.update(zip(pairs, range(start, end), strict=True))


class PairAnswers:
    """Means, explained variances and influences of pairs (own, partner) of numbers of members.

    Args:
        process: given what was observed. Nothing here outlives it.
        prior: variances under the process's kernel, which do.
        known: the members that keys number.
    """

    def __init__(self, process: Process, prior: PriorVariance, known: KnownMembers) -> None:
        self.process, self._prior, self._known = process, prior, known
        self._explained = process.explained_width
        self._sign = np.where(np.arange(self._explained) < len(process.used), 1.0, -1.0)
        self._pairs = _Pairs(self._explained + len(process.used))
        self._own: dict[int, _Own] = {}
        self._lock = threading.Lock()

    def beside(self, keys: Sequence[Key]) -> Answers:
        """Members beside their partners."""
        with self._lock:
            self._meet(keys)
            pairs, place, own = self._pairs, self._pairs.place, [self._own[key[0]] for key in keys]
            at = [[place[key[0], partner] for partner in _partners(key)] for key in keys]
            mean = [math.fsum(pairs.mean[k] for k in row) / len(row) for row in at]
            prior = [self._prior_of(key) for key in keys]
            rows = pairs.rows
        most = max(map(len, at))
        count = np.array([len(row) for row in at], np.float32)
        chosen = np.array([row + [_NOBODY] * (most - len(row)) for row in at])
        together = rows[chosen].sum(1) / count[:, None]
        half, added = together[:, : self._explained], together[:, self._explained :]
        explained = (np.square(half, dtype=np.float64) @ self._sign).tolist()
        return Answers(
            mean,
            [
                max(before - less + one.variance, 0.0) if before else 0.0
                for before, less, one in zip(prior, explained, own, strict=True)
            ],
            prior,
            [one.solo for one in own],
            [one.solo_shrink for one in own],
            added,
        )

    def _prior_of(self, key: Key) -> float:
        """Prior variance of the mean over partners: of each by itself, and of every two together."""
        count = len(key) - 1
        if not count:
            return 0.0
        pairs = self._pairs
        both = sum(pairs.between[pairs.place[two]] for two in combinations(key[1:], 2))
        return (count * self._prior.beside_one + 2 * both) / count**2

    def _meet(self, keys: Sequence[Key]) -> None:
        """Have rows of all pairs of these keys."""
        place = self._pairs.place
        asked = dict.fromkeys(pair for key in keys for pair in _pairs_of(key))
        new = [pair for pair in asked if pair not in place]
        if len(place) + len(new) > _KEPT:
            self._pairs, new = _Pairs(self._pairs.rows.shape[1]), list(asked)
            self._own = {}
        if new:
            self._meet_alone(dict.fromkeys(own for own, _ in new))
            self._add(new)

    def _meet_alone(self, members: Iterable[int]) -> None:
        """Have solo step times; one that was measured is not corrected."""
        new = np.array([number for number in members if number not in self._own], dtype=np.int64)
        if not len(new):
            return
        process, known = self.process, self._known.members
        moves = self._known.solo_predicted[new] & process.evidence.rows.solo.any()
        alone = Rows(new, np.full((len(new), 1), _ALONE), np.ones(len(new)))
        mean, half, added = process.parts(known, alone)
        prior, noise = kernel_of_itself(process.parameters).solo[0, 0], process.parameters.noise
        variance = np.maximum(prior - np.square(half) @ self._sign, 0.0)
        solo, shrink = np.where(moves, mean, 0.0), np.where(moves, np.sqrt((variance + noise) / (prior + noise)), 1.0)
        extra = process.own_variance(known, new)
        for k, number in enumerate(new.tolist()):
            self._own[number] = _Own(float(solo[k]), float(shrink[k]), added[k] * moves[k], float(extra[k]))

    def _add(self, new: Sequence[tuple[int, int]]) -> None:
        own, partner = np.array(new, dtype=np.int64).T
        known, has_partner = self._known.members, partner != _ALONE
        # Without a partner it is nobody's row.
        mean, half, added = self.process.parts(known, Rows(own, partner[:, None], np.zeros(len(own))))
        between = np.zeros(len(own))
        between[has_partner] = self._prior.between(known, own[has_partner], partner[has_partner])
        # Both in log step times, the excess as beside a typical slowdown, only to tell what weighs most. Shares of partners come to 1.
        added = added + np.array([self._own[number].added for number in own.tolist()])
        self._pairs.add(new, np.concatenate([half, added], 1), mean, between)


def _partners(key: Key) -> Key:
    return key[1:] or (_ALONE,)


def _pairs_of(key: Key) -> Iterable[tuple[int, int]]:
    """A member beside each of its partners, and these beside each other."""
    yield from ((key[0], partner) for partner in _partners(key))
    yield from combinations(key[1:], 2)
