"""Jobs observed alone: the predictor is told their step time, as `step_time_s` in a SPEC would.

It then also knows how long such a job leaves the device idle, which matters more to its neighbours than the
job's graph does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from predictor.learning.config import PosteriorConfig
from predictor.learning.known_members import KnownMembers
from predictor.learning.observed import Observed, set_of
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.types import MemberPrediction, SetPredictor

# Device, whether the step ran in a MIG slice, job. Alone, time slicing and MPS are the same.
_Job = tuple[str, bool, Workload]
# Logs of step times are rounded to this, below what a measurement repeats to: with each new value all sets of
# the job are predicted anew.
_GRID = 0.01


@dataclass(frozen=True, slots=True)
class AloneStep:
    """Step time of a job alone, and the number of observations of it."""

    step_time_s: float
    observations: int


class MeasuredAlone:
    """Observed solo step times.

    Args:
        steps: by device and job; none by default.
    """

    def __init__(self, steps: Mapping[_Job, AloneStep] | None = None) -> None:
        self._steps = dict(steps or {})

    @classmethod
    def among(cls, seen: Observed, config: PosteriorConfig) -> MeasuredAlone:
        """From all observations of jobs alone whose SPEC states no step time."""
        if not config.learn_solo or not len(seen):
            return cls()
        values: dict[_Job, list[tuple[float, int]]] = {}
        for row in np.flatnonzero((seen.partners < 0).all(1)).tolist():
            device, sharing, workload, _ = seen.keys[row]
            job = device, sharing == "mig", workload.without_solo()
            values.setdefault(job, []).append((float(seen.log_step_s[row]), int(seen.count[row])))
        steps = {}
        for job, found in values.items():
            total = sum(count for _, count in found)
            mean = sum(count * value for value, count in found) / total
            steps[job] = AloneStep(math.exp(_GRID * round(mean / _GRID)), total)
        return cls(steps)

    def __len__(self) -> int:
        return len(self._steps)

    def of(self, device: str, sharing: str, workload: Workload) -> AloneStep | None:
        """What was observed of a job alone; None where nothing was or its SPEC states a step time."""
        if workload.solo.step_time_s is not None:
            return None
        return self._steps.get((device, sharing == "mig", workload.without_solo()))

    def told(self, device: str, sharing: str, workload: Workload) -> Workload:
        """The job with its observed step time stated."""
        step = self.of(device, sharing, workload)
        if step is None:
            return workload
        return replace(workload, solo=replace(workload.solo, step_time_s=step.step_time_s))

    def told_sets(self, sets: Sequence[ColocationSet]) -> Sequence[ColocationSet]:
        """The sets with all such step times stated."""
        if not self._steps:
            return sets
        # A workload is hashed once, even if it is in thousands of sets.
        known: dict[tuple[str, str, int], Workload] = {}
        result = []
        for s in sets:
            members = []
            for w in s.workloads:
                key = s.device, s.sharing, id(w)
                if key not in known:
                    known[key] = self.told(s.device, s.sharing, w)
                members.append(known[key])
            same = all(a is b for a, b in zip(members, s.workloads, strict=True))
            result.append(s if same else replace(s, workloads=tuple(members)))
        return result

    def as_asked(
        self, asked: ColocationSet, members: Sequence[MemberPrediction]
    ) -> tuple[tuple[MemberPrediction, ...], list[str]]:
        """Answers for the members of a set with their SPECs as asked, and in words what was told."""
        named, reasons = [], []
        for workload, member in zip(asked.workloads, members, strict=True):
            step = self.of(asked.device, asked.sharing, workload)
            if step is None:
                named.append(member)
                continue
            named.append(structs.replace(member, job=str(workload)))
            times = "once" if step.observations == 1 else f"{step.observations} times"
            reasons.append(
                f"{workload.model}: its step time alone on {asked.device} was observed {times}, and replaces the prediction"
            )
        return tuple(named), reasons

    def told_members(self, known: KnownMembers) -> Integers:
        """[V] number of each known member once its step time is stated: its own where none was observed."""
        keys = known.keys()
        result = np.arange(len(keys))
        if not self._steps:
            return result
        places, told, steps = [], [], []
        for number, (workload, device, sharing) in enumerate(keys):
            step = self.of(device, sharing, workload)
            if step is not None:
                places.append(number)
                told.append((self.told(device, sharing, workload), device, sharing))
                steps.append(step.step_time_s)
        if places:
            result[places] = known.numbers(told, steps)
        return result

    def told_rows(
        self, seen: Observed, kept: Integers, known: KnownMembers, predictor: SetPredictor, earlier: Observed
    ) -> Observed:
        """The observations with the members and answers of the sets whose step times are stated.

        Observations of jobs alone stay as they are: what they say of other jobs is how far off the prediction
        was.

        Args:
            seen: with the answers for the sets as they were observed.
            kept: the rows that matter.
            known: numbers the members.
            predictor: asked about rows that have changed.
            earlier: the result for fewer observations, or `seen` with no rows.
        """
        if not self._steps:
            return seen
        told = self.told_members(known)
        together = (seen.partners >= 0).any(1)
        own = np.where(together, told[seen.own], seen.own)
        partners = np.where(seen.partners >= 0, told[seen.partners], -1)
        solo, slowdown = seen.log_solo_s.copy(), seen.log_slowdown.copy()
        differs = (own != seen.own) | (partners != seen.partners).any(1)
        asked = np.intersect1d(np.flatnonzero(differs), kept)
        done = asked[asked < len(earlier)]
        width = earlier.partners.shape[1]
        done = done[
            (own[done] == earlier.own[done])
            & (partners[done][:, :width] == earlier.partners[done]).all(1)
            & (partners[done][:, width:] < 0).all(1)
        ]
        solo[done], slowdown[done] = earlier.log_solo_s[done], earlier.log_slowdown[done]
        new = np.setdiff1d(asked, done)
        if len(new):
            arrays = predictor.predict_arrays(self.told_sets([set_of(seen.keys[row]) for row in new]))
            solo[new] = np.log(arrays.solo_step_time_s[:, 0])
            slowdown[new] = np.log(np.maximum(arrays.slowdown[:, 0], 1.0))
        return replace(seen, own=own, partners=partners, log_solo_s=solo, log_slowdown=slowdown)


class ToldTable:
    """Rows of a predictor's job table with the step times of `measured` stated.

    Args:
        measured: the step times.
        table: `predictor.answering.job_table.JobTable`.
    """

    def __init__(self, measured: MeasuredAlone, table: Any) -> None:
        self._measured, self._table = measured, table
        self._row: Integers = np.zeros(0, np.int64)

    def __call__(self, rows: Integers) -> Integers:
        """[S, M] rows, -1 where there is none."""
        if not len(self._measured) or not rows.size:
            return rows
        if len(self._row) <= rows.max():
            keys = self._table.keys[len(self._row) :]
            told = [(self._measured.told(device, mode, w), device, mode) for w, device, mode in keys]
            self._row = np.concatenate([self._row, np.array(self._table.rows(told), np.int64)])
        return np.where(rows >= 0, self._row[rows], rows)
