"""Jobs without observations of their own, of which the same with other options was observed alone on the device.

The predictor is told what was observed of a job alone, and then knows more of what it does beside others. Were it told
nothing of the job's other batch sizes, frozen prefixes or shares, these would differ as if they were other jobs. It is
told their solo step times as they are answered, and the utilisation that follows from an observed one: the device is
busy longer by the cost model's ratio. Only slowdowns follow from this. Solo step times, and how wide intervals are, stay
those of predicted jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.gaussian_process.job_keys import JOBS, jobs_on_devices
from predictor.gaussian_process.known_members import ByMember, KnownMembers
from predictor.learning.answers.corrections import Corrections
from predictor.learning.evidence.observed import Observed
from predictor.padding import padded
from predictor.types import Bools, PredictionArrays
from profiling.workload import STEP_TIMES_S, ColocationSet, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Log step times and utilisations are rounded to this. With each new value all sets of a job are predicted anew, and
# every observation moves many of them a little.
_GRID = 0.05


class RelatedAlone:
    """Slowdowns of sets with such jobs.

    Args:
        seen: the observations.
        told: [V] number of each known member once what was observed of it alone is stated.
        known: the members.
        corrections: of solo step times.
    """

    def __init__(self, seen: Observed, told: Integers, known: KnownMembers, corrections: Corrections) -> None:
        self._known, self._corrections = known, corrections
        is_alone = ~(seen.partners >= 0).any(1) & (known.family[seen.own] >= 0)
        alone = np.unique(seen.own[is_alone])
        self._families, self._told = self._families_of(alone), told[alone]
        everyone = np.concatenate([seen.own, seen.partners[seen.partners >= 0]])
        self._observed = np.unique(jobs_on_devices(known.members, everyone))
        self._about = ByMember(self._found)
        self._stated: dict[int, Workload] = {}

    def of_sets(
        self,
        sets: Sequence[ColocationSet],
        numbers: Integers,
        predict: Callable[[list[ColocationSet]], PredictionArrays],
    ) -> tuple[Integers, Floats]:
        """Places [P] of the sets of several jobs with such jobs, and slowdowns [P, K] once their solo step times are
        stated.

        Args:
            sets: as the predictor is told of them otherwise.
            numbers: [S, M] of their members, -1 where a set has fewer.
            predict: answers with all that was observed.
        """
        about, told = self._beside_others(numbers), list[ColocationSet]()
        places = np.flatnonzero(about.any(1))
        for k in places.tolist():
            workloads = list(sets[k].workloads)
            for column in np.flatnonzero(about[k]).tolist():
                workloads[column] = self._as_stated(int(numbers[k, column]))
            told.append(replace(sets[k], workloads=tuple(workloads)))
        return places, predict(told).slowdown if told else np.zeros((0, 0))

    def of_rows(
        self, rows: Integers, numbers: Integers, table: Any, predict: Callable[[Integers], PredictionArrays]
    ) -> tuple[Integers, Floats]:
        """The same for rows [S, M] of the predictor's job table."""
        about, told = self._beside_others(numbers), rows.copy()
        distinct, first, where = np.unique(rows[about], return_index=True, return_inverse=True)
        own = zip(distinct.tolist(), numbers[about][first].tolist(), strict=True)
        stated = [(self._as_stated(number), *table.keys[row][1:]) for row, number in own]
        told[about] = np.array(table.rows(stated), np.int64)[where]
        places = np.flatnonzero(about.any(1))
        return places, predict(told[places]).slowdown if len(places) else np.zeros((0, 0))

    def of_members(
        self,
        sets: Sequence[ColocationSet],
        numbers: Sequence[Sequence[int]],
        predict: Callable[[list[ColocationSet]], PredictionArrays],
    ) -> list[tuple[int, float]]:
        """The same for the members of all sets in a row: their places and slowdowns."""
        places, slowdown = self.of_sets(sets, padded(numbers), predict)
        start = np.cumsum([0, *map(len, numbers)])
        return [
            (place, value)
            for k, row in zip(places.tolist(), slowdown.tolist(), strict=True)
            for place, value in zip(range(start[k], start[k + 1]), row, strict=False)
        ]

    def _families_of(self, numbers: Integers) -> Integers:
        return np.asarray(self._known.members.device[numbers] * JOBS + self._known.family[numbers])

    def _beside_others(self, numbers: Integers) -> Bools:
        """[S, M] whether members, by number, are such jobs in a set of several."""
        if not len(self._families):
            return np.zeros(numbers.shape, dtype=bool)
        about = self._about.first(len(self._known.members))
        present = numbers >= 0
        return np.asarray(about[numbers] & present & (present.sum(1) > 1)[:, None])

    def _found(self, numbers: Integers) -> Bools:
        found = self._known.solo_predicted[numbers] & np.isin(self._families_of(numbers), self._families)
        observed = np.isin(jobs_on_devices(self._known.members, numbers), self._observed)
        return np.asarray(found & ~observed)

    def _as_stated(self, number: int) -> Workload:
        """Such a job with its solo step time and utilisation stated."""
        stated = self._stated.get(number)
        if stated is None:
            workload, device, _ = self._known.key(number)
            error = float(self._corrections.solo(np.array(number)))
            step_s = math.exp(_rounded(float(self._known.log_step_s[number]) + error))
            step_s = min(max(step_s, STEP_TIMES_S[0]), STEP_TIMES_S[1])
            busy = workload.solo.utilization_ratio
            if busy is None:
                busy = self._utilization_ratio(number, workload, device, step_s)
            solo = replace(workload.solo, step_time_s=step_s, utilization_ratio=busy)
            stated = self._stated[number] = replace(workload, solo=solo)
        return stated

    def _utilization_ratio(
        self, number: int, workload: Workload, device: str, step_time_s: float
    ) -> float | None:
        """Of a job, from that of the observed one that keeps the device busy for nearly as long; None without one."""
        own_s, result, least = self._busy_s(workload, device), None, math.inf
        for relative in self._told[self._families == self._families_of(np.array([number]))].tolist():
            observed = self._known.key(relative)[0]
            solo, busy_s = observed.solo, self._busy_s(observed, device)
            if solo.step_time_s and solo.utilization_ratio is not None and own_s and busy_s:
                apart = abs(math.log(own_s / busy_s))
                if apart < least:
                    busy = solo.utilization_ratio * solo.step_time_s * own_s / busy_s
                    result, least = min(_rounded(busy / step_time_s), 1.0), apart
        return result

    def _busy_s(self, workload: Workload, device: str) -> float:
        """By the cost model, per step; 0 if unknown."""
        job = self._known.job(workload, device)
        return 0.0 if job is None else job.cost.busy_s


def _rounded(value: float) -> float:
    return _GRID * round(value / _GRID)
