"""Solo step times that a question states of jobs that were observed beside others without them.

What was learned of such a job stands on its predicted solo step time: its slowdowns absorb what is wrong with that, and
those of its neighbours stand on what it was expected to do to them. Once the question states the solo step time, the
job's rows of evidence are read anew, for this question only. Their weights and variances stay, so what is learned from
them is linear in what has changed, and that of several such jobs adds up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.learning.conditioning import Conditioning
from predictor.learning.known_members import KnownMembers
from predictor.learning.link import to_scale
from predictor.learning.measured_alone import MeasuredAlone
from predictor.learning.observed import Observed, set_of
from predictor.learning.observed_sets import each_of_three
from predictor.learning.process import Process
from predictor.learning.rows import Rows
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# More than there are numbers of jobs, so that one number stands for a device and a job.
_MANY = 2**32
# Cached pairs, beyond which the cache is emptied.
_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class _Reread:
    """A member and what its stated solo step time changes.

    Attributes:
        member: as the job was observed, so that what was observed of it is taken for the same.
        change: of means, as a process.
    """

    member: int
    change: Process


class StatedAlone:
    """Means of members whose SPECs state what was predicted when they were observed.

    Args:
        given: the process and the observations.
        measured: what the predictor is told of jobs alone.
        predictor: asked for the slowdowns of observed sets, given the stated solo step time.
    """

    def __init__(self, given: Conditioning, measured: MeasuredAlone, predictor: Any) -> None:
        self._process, self._seen, self._rows, self._known = (
            given.process,
            given.seen,
            given.rows,
            given.known,
        )
        self._expected, self._measured, self._predictor = given.expected, measured, predictor
        seen, rows, known = given.seen, given.rows, given.known
        together = np.concatenate([seen.own[rows, None], seen.partners[rows]], 1)
        # Places in the evidence of members with a predicted solo step time, and their columns in the sets.
        self._place, self._column = np.nonzero((together >= 0) & known.solo_predicted[together])
        self._member = together[self._place, self._column]
        self._job = self._jobs_of(self._member)
        self._jobs = np.unique(self._job)
        self._about: Bools = np.zeros(0, dtype=bool)
        self._reread: dict[int, _Reread] = {}
        self._means: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()

    @classmethod
    def nothing(cls, process: Process, known: KnownMembers) -> StatedAlone:
        """Without such jobs."""
        none = np.zeros(0, np.int64)
        given = Conditioning(process, Observed.nothing(), none, np.zeros(0), known)
        return cls(given, MeasuredAlone(), None)

    def _jobs_of(self, members: Integers) -> Integers:
        known = self._known.members
        return known.device[members] * _MANY + known.job[members]

    def about(self, numbers: Integers) -> Bools:
        """Whether members, by number, are such; -1 is none. Any shape."""
        if not len(self._jobs):
            return np.zeros(numbers.shape, dtype=bool)
        about, count = (
            self._about,
            len(self._known.members),
        )  # read once, because another thread may know more
        if len(about) < count:
            new = np.arange(len(about), count)
            found = ~self._known.solo_predicted[new] & np.isin(self._jobs_of(new), self._jobs)
            about = self._about = np.concatenate([about, found])
        return np.asarray(about[numbers] & (numbers >= 0))

    def as_observed(self, numbers: Integers) -> Integers:
        """[R] members, by number, and such ones as their jobs were observed."""
        result = numbers.copy()
        for number in np.unique(numbers[self.about(numbers)]).tolist():
            result[numbers == number] = self._read(number).member
        return result

    def means(self, own: Integers, partners: Integers) -> Floats:
        """[R] answers for members, by number, each beside one partner."""
        pairs = list(zip(own.tolist(), partners.tolist(), strict=True))
        with self._lock:
            if new := [pair for pair in dict.fromkeys(pairs) if pair not in self._means]:
                if len(self._means) + len(new) > _KEPT:
                    self._means, new = {}, list(dict.fromkeys(pairs))
                self._meet(new)
            return np.array([self._means[pair] for pair in pairs])

    def corrected(self, correction: Floats, numbers: Integers) -> Floats:
        """[S, M] corrections, with those of sets with such members replaced.

        Args:
            correction: [S, M] of sets; numbers: [S, M] of their members, -1 where a set has fewer.
        """
        if not len(self._jobs) or numbers.shape[1] < 2:
            return correction
        chosen = np.flatnonzero(self.about(numbers).any(1))
        if not len(chosen):
            return correction
        some, width = numbers[chosen], numbers.shape[1]
        here = (some[:, :, None] >= 0) & (some[:, None, :] >= 0) & ~np.eye(width, dtype=bool)
        sets, own, partner = np.nonzero(here)
        means, weight = np.zeros(here.shape), np.zeros(here.shape)
        means[here] = self.means(some[sets, own], some[sets, partner])
        weight[here] = self._known.members.occupancy[some[sets, partner]]
        total = weight.sum(2)
        result = correction.copy()
        result[chosen] = (weight * means).sum(2) / np.where(total > 0, total, 1.0)
        return result

    def with_sets(self, means: Floats, numbers: Integers) -> Floats:
        """[S, M] means with what observed sets of three or more do beyond their pairs (`ObservedSets`).

        Args:
            means: [S, M] of sets; numbers: [S, M] of their members, -1 where a set has fewer.
        """
        if not len(self._process.sets) or numbers.shape[1] < 3:
            return means
        result = means.copy()
        for here, own, partners in each_of_three(numbers):
            result[here] += self.set_effects(own, partners)
        return result

    def set_effects(self, own: Integers, partners: Integers) -> Floats:
        """[R] the same of members `own` [R] beside `partners` [R, P], -1 where there are fewer."""
        members, numbers = self._known.members, np.concatenate([own[:, None], partners], 1)
        result = self._process.sets.effects(members, own, partners)
        for number in np.unique(numbers[self.about(numbers)]).tolist():
            here = np.flatnonzero((numbers == number).any(1))
            with self._lock:
                change = self._read(number).change
            result[here] += change.sets.effects(members, own[here], partners[here])
        return result

    def _meet(self, pairs: list[tuple[int, int]]) -> None:
        """Cache the means of pairs."""
        numbers = np.array(pairs)
        observed = self.as_observed(numbers.ravel()).reshape(numbers.shape)
        mean = self._beside(self._process, observed)
        for number in np.unique(numbers[self.about(numbers)]).tolist():
            here = np.flatnonzero((numbers == number).any(1))
            mean[here] += self._beside(self._read(number).change, observed[here])
        self._means.update(zip(pairs, mean.tolist(), strict=True))

    def _beside(self, process: Process, pairs: Integers) -> Floats:
        """[P] means of a process for the first of each of `pairs` [P, 2] beside the second."""
        members, rows = self._known.members, Rows(pairs[:, 0], pairs[:, 1:])
        mean, _ = process.answer(members, rows, with_variance=False)
        place = process.confirmed.places(members, pairs[:, 0], pairs[:, 1])
        mean[place >= 0] += process.confirmed.effect[place[place >= 0]]
        return mean

    def _read(self, number: int) -> _Reread:
        """The rows of a member's job, given its stated solo step time."""
        if number in self._reread:
            return self._reread[number]
        known, process, seen, knee = self._known, self._process, self._seen, self._process.parameters.knee
        entries = np.flatnonzero(self._job == self._jobs_of(np.array([number]))[0])
        places, columns = self._place[entries], self._column[entries]
        evidence, index = np.unique(places, return_inverse=True)
        rows, own = self._rows[evidence], np.zeros(len(evidence), dtype=bool)
        own[index[columns == 0]] = True
        expected = self._expected[evidence]
        now = self._told(rows, zip(index.tolist(), columns.tolist(), strict=True), number)
        evidence = evidence + process.evidence.training
        observed = process.evidence.target[evidence] + expected
        observed[own] = to_scale(seen.log_step_s[rows[own]] - known.log_step_s[number], knee)
        setting = known.members.setting
        alike = self._member[entries][setting[self._member[entries]] == setting[number]]
        change = process.changed(evidence, observed - now - process.evidence.target[evidence])
        reread = self._reread[number] = _Reread(int(alike[0]) if len(alike) else number, change)
        return reread

    def _told(self, rows: Integers, stated: Iterable[tuple[int, int]], number: int) -> Floats:
        """[R] what is expected of observed rows if some members are `number`.

        Args:
            rows: [R] numbers of the rows; stated: place among these, and column in the set, of each such member.
        """
        workload = self._known.keys()[number][0]
        sets = [set_of(self._seen.keys[row]) for row in rows.tolist()]
        for place, column in stated:
            workloads = list(sets[place].workloads)
            workloads[column] = workload
            sets[place] = replace(sets[place], workloads=tuple(workloads))
        arrays = self._predictor.predict_arrays(self._measured.told_sets(sets)[0])
        return to_scale(np.log(np.maximum(arrays.slowdown[:, 0], 1.0)), self._process.parameters.knee)
