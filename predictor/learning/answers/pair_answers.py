"""The process's answers for members beside partners, assembled from pairs.

For a new set of known jobs, this takes a mean instead of solving a system. Calls have few sets, for which
numpy's overhead dominates, so scalars are Python numbers here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.known_members import KnownMembers
from predictor.gaussian_process.leave_one_out import calibrated
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import Rows
from predictor.learning.answers.cached_pairs import NOBODY, CachedPairs, RowsOfPairs
from predictor.learning.answers.corrector import Shift
from predictor.learning.answers.stated_alone import StatedAlone
from predictor.learning.evidence.prior import Prior
from predictor.learning.evidence.solo_errors import SoloErrors
from predictor.learning.evidence.solo_limits import SoloLimits
from predictor.padding import padded

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Numbers of a member and of its partners, ascending.
Key = tuple[int, ...]
# Number of cached pairs; each takes some kilobytes. With row `NOBODY` they make a power of two.
_KEPT = 8191
# Number of cached covariances of (member, two partners), and how many are computed together.
_KEPT_TRIPLES = 200_000
_TOGETHER = 1024
_ALONE = -1


@dataclass(frozen=True, slots=True)
class Places:
    """Places among the observations that answers are put down to.

    Attributes:
        rows: of the rows that the process uses; confirmed: of those of its confirmed pairs.
        sets: of those of its observed sets, -1 for those that have none.
    """

    rows: Integers
    confirmed: Integers
    sets: Integers


@dataclass(frozen=True, slots=True)
class _Own:
    """A member by itself: the part of `Shift` about its solo step time, and the variance of the job's own effect.

    Attributes:
        response: product with `CachedPairs.half`: by how much an error of the solo step time moves the log excess.
    """

    solo: float
    solo_variance: float
    solo_prior_variance: float
    response: RowsOfPairs
    added: Floats
    variance: float


class PairAnswers:
    """Means, explained variances and influences of pairs (own, partner), given as member numbers.

    Args:
        process: given what was observed. Nothing here outlives it.
        solo_errors: of solo step times, given which the process learned.
        prior: of the process, which does outlive it.
        known: the members that keys number.
        places: of rows among the observations that answers are put down to.
        shares: [W, used] of each of these places in what every job of `solo_errors` adds.
        limits: of solo step times.
        stated: what `process` says of jobs whose solo step times were stated since.
    """

    def __init__(
        self,
        process: Process,
        solo_errors: SoloErrors,
        prior: Prior,
        known: KnownMembers,
        places: Places,
        shares: Floats,
        limits: SoloLimits,
        stated: StatedAlone,
    ) -> None:
        self.process, self.solo_errors, self._prior, self._known = process, solo_errors, prior, known
        self._places, self._shares, self._limits, self._stated = places, shares, limits, stated
        self._sign, before = process.explained_sign, prior.process.explained_sign
        self._pairs = CachedPairs(len(self._sign), len(before), shares.shape[1])
        self._own: dict[int, _Own] = {}
        self._lock = threading.Lock()

    def beside(self, keys: Sequence[Key]) -> tuple[list[Shift], Floats]:
        """Corrections for R members beside their partners, and [R, used] what each observation adds to them."""
        with self._lock:
            try:
                at, weights, mean, prior, variance, covariance = self._looked_up(keys)
            except KeyError:
                self._cache(keys)
                at, weights, mean, prior, variance, covariance = self._looked_up(keys)
            added, own = self._pairs.added, [self._own[key[0]] for key in keys]
        most = max(map(len, at))
        places = np.array([row + [NOBODY] * (most - len(row)) for row in at])
        factors = np.array([row + [0.0] * (most - len(row)) for row in weights], np.float32)
        total = np.einsum("rm,rmu->ru", factors, added[places])
        self._add_sets(keys, mean, variance, total)
        of_solo = [(one.solo, one.solo_variance, one.solo_prior_variance) for one in own]
        answers = zip(mean, variance, prior, of_solo, covariance, strict=True)
        return [Shift(m, v, before, *solo, both) for m, v, before, solo, both in answers], total

    def _add_sets(self, keys: Sequence[Key], mean: list[float], variance: list[float], added: Floats) -> None:
        """Add what observed sets of three or more do beyond their pairs to the answers for R keys."""
        sets, large = self.process.sets, [k for k, key in enumerate(keys) if len(key) > 2]
        if not len(sets) or not large:
            return
        numbers = padded([keys[k] for k in large])
        places = sets.places(self._known.members, numbers[:, 0], numbers[:, 1:])
        found = np.flatnonzero(places >= 0)
        effects = self._stated.set_effects(numbers[found, 0], numbers[found, 1:]).tolist()
        for k, place, effect in zip(found.tolist(), places[found].tolist(), effects, strict=True):
            row, share, noise = large[k], float(sets.share[place]), float(sets.noise[place])
            mean[row] += effect
            variance[row] = share * noise + (1.0 - share) * variance[row]
            if (named := int(self._places.sets[place])) >= 0:
                added[row, named] += effect

    def _looked_up(
        self, keys: Sequence[Key]
    ) -> tuple[list[list[int]], list[list[float]], list[float], list[float], list[float], list[float]]:
        """Rows of each key's pairs, their weights, means, prior variances, variances and covariances with the solo step
        time.

        Raises:
            KeyError: a pair is not cached.
        """
        place, means, variances = self._pairs.place, self._pairs.mean, self._pairs.variance
        covariance, absorbed, between = self._pairs.covariance, self._pairs.absorbed, self._pairs.between
        priors, ratio = self._pairs.prior, self.process.variance_ratio
        at, weights_of, mean, prior, variance, shared = [], [], [], [], [], []
        for key in keys:
            own, partners = key[0], key[1:]
            rows = [place[own, partner] for partner in partners or (_ALONE,)]
            weights = self._weights_of(partners)
            at.append(rows)
            weights_of.append(weights)
            mean.append(_weighted(weights, means, rows))
            if not partners:
                prior.append(0.0)
                variance.append(0.0)
                shared.append(0.0)
                continue
            # Variance of a mean over partners: the variance of each, plus twice the covariance of every two.
            squares = [weight * weight for weight in weights]
            before, left = _weighted(squares, priors, rows), _weighted(squares, variances, rows)
            plain = sum(squares) * self._prior.variance.beside_one
            for (one, a), (other, b) in combinations(zip(partners, weights, strict=True), 2):
                both, twice = covariance[own, one, other], 2 * a * b
                before += twice * both[0]
                left += twice * both[1]
                plain += twice * between[place[one, other]]
            alone = self._own[own]
            left, before = self._prior.without_pairs(max(left + alone.variance, 0.0), before, plain)
            moved = _weighted(weights, absorbed, rows)
            prior.append(before)
            left = calibrated(left, before, ratio)
            variance.append(left + moved**2 * alone.solo_variance)
            shared.append(-moved * alone.solo_variance)
        return at, weights_of, mean, prior, variance, shared

    def _weights_of(self, partners: Sequence[int]) -> list[float]:
        """Weights of the pairs with some partners in the mean over them, which sum to 1."""
        if len(partners) < 2:
            return [1.0]
        occupancy = self._known.members.occupancy[list(partners)]
        return list((occupancy / occupancy.sum()).tolist())

    def _cache(self, keys: Sequence[Key]) -> None:
        """Cache all pairs of these keys."""
        pairs = self._pairs
        asked = dict.fromkeys(pair for key in keys for pair in _pairs_of(key))
        new = [pair for pair in asked if pair not in pairs.place]
        if len(pairs.place) + len(new) > _KEPT or len(pairs.covariance) > _KEPT_TRIPLES:
            pairs = self._pairs = CachedPairs(
                *(rows.shape[1] for rows in (pairs.half, pairs.before, pairs.added))
            )
            self._own, new = {}, list(asked)
        if new:
            self._cache_members(dict.fromkeys(own for own, _ in new))
            self._cache_pairs(new)
        triples = dict.fromkeys((own, *two) for own, *partners in keys for two in combinations(partners, 2))
        missing = [triple for triple in triples if triple not in pairs.covariance]
        for start in range(0, len(missing), _TOGETHER):
            some = missing[start : start + _TOGETHER]
            one = [pairs.place[own, partner] for own, partner, _ in some]
            other = [pairs.place[own, partner] for own, _, partner in some]
            plain = np.array([pairs.between[pairs.place[partner, second]] for _, partner, second in some])
            before = plain - _product(pairs.before, one, other) @ self._prior.process.explained_sign
            left = plain - _product(pairs.half, one, other) @ self._sign
            kept = np.array([pairs.kept[a] * pairs.kept[b] for a, b in zip(one, other, strict=True)])
            # The variance of the job's own effect is added to all of its pairs.
            shared = np.array([self._own[own].variance for own, *_ in some])
            left -= (1.0 - kept) * (left + shared)
            pairs.covariance.update(zip(some, zip(before.tolist(), left.tolist(), strict=True), strict=True))

    def _cache_members(self, members: Iterable[int]) -> None:
        """Cache solo step times; measured ones are not corrected."""
        new = np.array([number for number in members if number not in self._own], dtype=np.int64)
        if not len(new):
            return
        process, known = self.process, self._known.members
        moves = self._known.solo_predicted[new] & bool(len(self.solo_errors))
        mean, variance, contribution = self.solo_errors.answer(known.take(new))
        mean = self._limits.within(new, mean)
        prior, extra = self.solo_errors.prior_variance, process.own_effects.variance(known, new)
        added = contribution @ self._shares
        for k, number in enumerate(new.tolist()):
            response = self._response(number) if moves[k] else np.zeros(len(self._sign), np.float32)
            self._own[number] = _Own(
                float(mean[k] * moves[k]), float(variance[k] * moves[k]), prior * bool(moves[k]), response,
                added[k] * moves[k], float(extra[k]),
            )  # fmt: skip

    def _response(self, number: int) -> RowsOfPairs:
        """How the process's rows of a job on its device respond to an error of the job's solo step time."""
        members, evidence = self._known.members, self.process.evidence
        own = evidence.rows.own
        rows = np.flatnonzero(
            (members.device[own] == members.device[number])
            & (members.job[own] == members.job[number])
            & self._known.solo_predicted[own]
        )
        if not len(rows):
            return np.zeros(len(self._sign), np.float32)
        return self.process.solution.response(rows, evidence.steep[rows]).astype(np.float32)

    def _cache_pairs(self, new: Sequence[tuple[int, int]]) -> None:
        own, partner = np.array(new, dtype=np.int64).T
        known, has_partner = self._known.members, partner != _ALONE
        # A member without partners gets a row of zeros.
        as_observed, given = self._stated.as_observed, self._prior.process
        asked = Rows(as_observed(own), as_observed(partner)[:, None])
        mean, half, added = self.process.parts(known, asked)
        earlier = given.parts(known, asked)[1]
        between, beside_one = np.zeros(len(own)), self._prior.variance.beside_one
        between[has_partner] = self._prior.variance.between(known, own[has_partner], partner[has_partner])
        # Added up in log step times, with the excess as at a typical slowdown, only to rank influences. The
        # shares of the partners add up to 1.
        total = np.array([self._own[number].added for number in own.tolist()])
        total[:, self._places.rows] += added
        prior = beside_one - np.square(earlier) @ given.explained_sign
        variance = beside_one - np.square(half) @ self._sign
        absorbed = np.einsum("pw,pw->p", half, np.array([self._own[n].response for n in own.tolist()]))
        kept = np.ones(len(own))
        self._confirm(own, partner, total, mean, variance, absorbed, kept)
        stated = has_partner & (self._stated.about(own) | self._stated.about(partner))
        mean[stated] = self._stated.means(own[stated], partner[stated])
        self._pairs.add(new, half, earlier, total, mean, prior, variance, absorbed, kept, between)

    def _confirm(
        self,
        own: Integers,
        partner: Integers,
        added: Floats,
        mean: Floats,
        variance: Floats,
        absorbed: Floats,
        kept: Floats,
    ) -> None:
        """Add what pairs [P] that were observed often do by themselves; the arguments are those of `CachedPairs.add`."""
        confirmed = self.process.confirmed
        place = confirmed.places(self._known.members, own, partner)
        here = np.flatnonzero(place >= 0)
        if not len(here):
            return
        place = place[here]
        mean[here] += confirmed.effect[place]
        # The variance of the job's own effect is added to all of its pairs.
        shared = np.array([self._own[number].variance for number in own[here].tolist()])
        variance[here] = confirmed.noise[place] - shared
        # A stated solo step time has no error that the pair's slowdown could absorb.
        predicted = self._known.solo_predicted[self.process.evidence.rows.own[confirmed.row[place]]]
        steep = confirmed.steep[place] * predicted
        kept[here] -= confirmed.share[place]
        absorbed[here] += confirmed.share[place] * (steep - absorbed[here])
        added[here, self._places.confirmed[place]] += confirmed.effect[place]


def _weighted(weights: Sequence[float], values: Sequence[float], rows: Sequence[int]) -> float:
    return sum([weight * values[row] for weight, row in zip(weights, rows, strict=True)])


def _product(rows: RowsOfPairs, one: Sequence[int], other: Sequence[int]) -> Floats:
    """[P, width] products of rows."""
    return np.asarray(np.multiply(rows[list(one)], rows[list(other)], dtype=np.float64))


def _pairs_of(key: Key) -> Iterable[tuple[int, int]]:
    """A member beside each of its partners, and every two partners beside each other."""
    own, *partners = key
    yield from ((own, partner) for partner in partners or (_ALONE,))
    yield from combinations(partners, 2)


def rows_in_answers(
    rows: Integers, confirmed: Integers, sets: Integers, solo_rows: Integers, jobs: Integers, count: int
) -> tuple[Integers, Places, Floats]:
    """The rows of the observations that answers are put down to.

    Args:
        rows: those that the process uses; confirmed: those of confirmed pairs; sets: those of observed sets, which may
            be too many to be told apart where the process does without their rows.
        solo_rows: those that solo step times are from; jobs: the number of the job of each, in ascending order.
        count: of these jobs.

    Returns:
        the rows, the places of the others among them, and the share [count, rows] of each in what a job adds.
    """
    # One row of a job at least, so that it is named even if the process does without its rows.
    first = solo_rows[np.flatnonzero(np.diff(jobs, prepend=-1))]
    used = np.unique(np.concatenate([rows, confirmed, first]))
    named = np.isin(solo_rows, used)
    job, place = jobs[named], np.searchsorted(used, solo_rows[named])
    shares = np.zeros((count, len(used)))
    shares[job, place] = 1.0 / np.bincount(job, minlength=count)[job]
    of_sets = np.where(np.isin(sets, used), np.searchsorted(used, sets), -1)
    return used, Places(np.searchsorted(used, rows), np.searchsorted(used, confirmed), of_sets), shares
