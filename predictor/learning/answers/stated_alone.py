"""Solo step times that a question states of jobs that were observed beside others without them.

What was learned of such a job stands on its predicted solo step time: its slowdowns absorb what is wrong with that, and
those of its neighbours stand on what it was expected to do to them. Once the question states the solo step time, the
job's rows of evidence are read anew, for this question only. Their weights and variances stay, so what is learned from
them is linear in what has changed, and that of several such jobs adds up.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.gaussian_process.job_keys import jobs_on_devices
from predictor.gaussian_process.known_members import ByMember
from predictor.gaussian_process.link import to_scale
from predictor.gaussian_process.observed_sets import each_of_three
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import Rows
from predictor.learning.evidence.measured_alone import MeasuredAlone
from predictor.learning.evidence.observed import set_of
from predictor.learning.evidence.step_times import Conditioning
from predictor.types import Bools
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Cached pairs, beyond which the cache is emptied.
_KEPT = 100_000
# The same for stated solo step times, each of which takes some kilobytes.
_KEPT_CHANGES = 4096
# Stated solo step times read at once, and most sets predicted for those of one call: whoever states thousands of them
# must not occupy the process for minutes.
_READ_TOGETHER = 64
_MOST_PREDICTED = 20_000


class StatedAlone:
    """Means of members whose SPECs state what was predicted when they were observed.

    Args:
        given: the process and the observations.
        measured: what the predictor is told of jobs alone.
        predictor: asked for the slowdowns of observed sets, given the stated solo step time.
    """

    def __init__(self, given: Conditioning, measured: MeasuredAlone, predictor: Any) -> None:
        seen, rows, known = given.seen, given.rows, given.known
        self._process, self._seen, self._rows, self._known = given.process, seen, rows, known
        self._expected, self._measured, self._predictor = given.expected, measured, predictor
        together = np.concatenate([seen.own[rows, None], seen.partners[rows]], 1)
        # Places in the evidence of members with a predicted solo step time, and their columns in the sets.
        self._place, self._column = np.nonzero((together >= 0) & known.solo_predicted[together])
        self._member = together[self._place, self._column]
        self._job = jobs_on_devices(known.members, self._member)
        self._jobs = np.unique(self._job)
        self._about = ByMember(self._found)
        self._changed: dict[int, Process] = {}
        self._means: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()

    def about(self, numbers: Integers) -> Bools:
        """Whether members, by number, are such; -1 is none. Any shape."""
        if not len(self._jobs):
            return np.zeros(numbers.shape, dtype=bool)
        about = self._about.first(len(self._known.members))
        return np.asarray(about[numbers] & (numbers >= 0))

    def _found(self, numbers: Integers) -> Bools:
        jobs = jobs_on_devices(self._known.members, numbers)
        return np.asarray(~self._known.solo_predicted[numbers] & np.isin(jobs, self._jobs))

    def as_observed(self, numbers: Integers) -> Integers:
        """[R] members, by number, and such ones as their jobs were observed."""
        result, setting = numbers.copy(), self._known.members.setting
        for number in np.unique(numbers[self.about(numbers)]).tolist():
            members = self._member[self._entries(number)]
            alike = members[setting[members] == setting[number]]
            if len(alike):
                result[numbers == number] = alike[0]
        return result

    def _entries(self, number: int) -> Integers:
        """Where the member's job is in the evidence."""
        return np.flatnonzero(self._job == jobs_on_devices(self._known.members, np.array([number]))[0])

    def means(self, own: Integers, partners: Integers) -> Floats:
        """[R] answers for members, by number, each beside one partner."""
        pairs = list(zip(own.tolist(), partners.tolist(), strict=True))
        with self._lock:
            if new := [pair for pair in dict.fromkeys(pairs) if pair not in self._means]:
                if len(self._means) + len(new) > _KEPT:
                    self._means, new = {}, list(dict.fromkeys(pairs))
                self._cache(new)
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
        members, result = self._known.members, np.zeros(len(own))
        found = np.flatnonzero(self._process.sets.places(members, own, partners) >= 0)
        own, partners = own[found], partners[found]
        numbers = np.concatenate([own[:, None], partners], 1)
        result[found] = self._process.sets.effects(members, own, partners)
        with self._lock:
            changes = self._changes(np.unique(numbers[self.about(numbers)]).tolist())
        for number, change in changes.items():
            here = np.flatnonzero((numbers == number).any(1))
            result[found[here]] += change.sets.effects(members, own[here], partners[here])
        return result

    def _cache(self, pairs: list[tuple[int, int]]) -> None:
        """Cache the means of pairs."""
        numbers, members, process = np.array(pairs), self._known.members, self._process
        own, partner = self.as_observed(numbers.ravel()).reshape(numbers.shape).T
        changes = self._changes(np.unique(numbers[self.about(numbers)]).tolist())
        rows = {number: np.flatnonzero((numbers == number).any(1)) for number in changes}
        changed = [(change, rows[number]) for number, change in changes.items()]
        mean = process.changed_means(members, Rows(own, partner[:, None]), changed)
        place = process.confirmed.places(members, own, partner)
        for one, here in ((process, np.arange(len(pairs))), *changed):
            confirmed = here[place[here] >= 0]
            mean[confirmed] += one.confirmed.effect[place[confirmed]]
        self._means.update(zip(pairs, mean.tolist(), strict=True))

    def _changes(self, numbers: Sequence[int]) -> dict[int, Process]:
        """What stated solo step times of members change, by number: of means, as processes."""
        if new := [number for number in numbers if number not in self._changed]:
            if len(self._changed) + len(new) > _KEPT_CHANGES:
                self._changed, new = {}, list(numbers)
            left = _MOST_PREDICTED
            for start in range(0, len(new), _READ_TOGETHER):
                left -= self._read(new[start : start + _READ_TOGETHER], left)
        return {number: self._changed[number] for number in numbers}

    def _read(self, numbers: Sequence[int], most: int) -> int:
        """Read the rows of members' jobs given their stated solo step times.

        Args:
            numbers: of the members.
            most: largest number of sets to predict; beyond it, what is expected of a job's sets stays as it was.

        Returns:
            number of sets predicted.
        """
        process, keys, sets, parts = self._process, self._known.keys(), list[ColocationSet](), []
        for number in numbers:
            entries = self._entries(number)
            evidence, index = np.unique(self._place[entries], return_inverse=True)
            columns = self._column[entries]
            own = np.zeros(len(evidence), dtype=bool)
            own[index[columns == 0]] = True
            is_predicted = len(sets) + len(evidence) <= most
            parts.append((number, evidence, own, is_predicted))
            if is_predicted:
                sets += self._sets_with(keys[number][0], self._rows[evidence], index, columns)
        knee, start, slowdown = process.parameters.knee, 0, np.ones(0)
        if sets:
            slowdown = self._predictor.predict_arrays(self._measured.told_sets(sets)[0]).slowdown[:, 0]
        now = to_scale(np.log(np.maximum(slowdown, 1.0)), knee)
        for number, evidence, own, is_predicted in parts:
            places, expected = evidence + process.evidence.training, self._expected[evidence]
            target = process.evidence.target[places]
            observed = target + expected
            if is_predicted:
                expected, start = now[start : start + len(evidence)], start + len(evidence)
            step_s = self._seen.log_step_s[self._rows[evidence[own]]]
            observed[own] = to_scale(step_s - self._known.log_step_s[number], knee)
            self._changed[number] = process.changed(places, observed - expected - target)
        return len(sets)

    def _sets_with(
        self, workload: Workload, rows: Integers, index: Integers, columns: Integers
    ) -> list[ColocationSet]:
        """[R] observed sets, with `workload` in the place of some members.

        Args:
            rows: [R] numbers of the rows; index: place among these, and columns: in the set, of each such member.
        """
        sets = [set_of(self._seen.keys[row]) for row in rows.tolist()]
        for place, column in zip(index.tolist(), columns.tolist(), strict=True):
            workloads = list(sets[place].workloads)
            workloads[column] = workload
            sets[place] = replace(sets[place], workloads=tuple(workloads))
        return sets
