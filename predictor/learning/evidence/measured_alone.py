"""Jobs observed alone: the predictor is told what was seen of them, as `step_time_s` and the like in a SPEC would.

It then also knows how long such a job leaves the device idle, which matters more to its neighbours than the
job's graph does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from predictor.examples.observations import Observation
from predictor.gaussian_process.known_members import KnownMembers
from predictor.learning.evidence.alone import NAMES, NO_NOTES, Alone, Notes, Told
from predictor.learning.evidence.observed import Expected, Observed, set_of
from profiling.devices import leaves_slices_open
from profiling.spelling import in_short
from profiling.workload import ColocationSet, SoloProfile, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.types import SetPredictor

# Device, whether the job ran in a MIG slice that the device does not name, job. Otherwise the sharing modes are the same
# alone. What was observed is kept under the job's one spelling, without what its SPEC states.
Job = tuple[str, bool, Workload]
# Jobs with their SPECs of which is kept what to tell.
_KEPT = 50_000
_UNKNOWN = -1
# Columns of `Observed` that the predictor is asked for.
_PREDICTED = "log_solo_s", "log_slowdown", "towards_networks"


class MeasuredAlone:
    """What was observed of jobs alone, to tell the predictor.

    Args:
        alone: by device and job; nothing by default. Unchanged.
        spelled: one spelling of a job.
    """

    def __init__(
        self, alone: Mapping[Job, Alone] | None = None, spelled: Callable[[Workload], Workload] = in_short
    ) -> None:
        self._alone, self._one_spelling = alone or {}, spelled
        self._told: dict[Job, Told] = {}
        # The keys of `_told` by what they are kept under.
        self._spelled: dict[Job, tuple[Job, ...]] = {}
        # Both change together: what is not found by `_spelled` would never be told anew.
        self._lock = threading.Lock()
        # What `told_members` found for the first members.
        self._numbers: WeakKeyDictionary[KnownMembers, Integers] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._alone)

    @property
    def jobs(self) -> Mapping[Job, Alone]:
        """What was observed, by job."""
        return self._alone

    @property
    def unstated_steps(self) -> int:
        """Number of observations without a step time of their own, because the SPEC stated it."""
        return sum(p.step_time_s is None for alone in self._alone.values() for p in alone.profiles)

    def observed(self, observations: Iterable[Observation]) -> MeasuredAlone:
        """The same after further observations: of those of jobs alone, what their SPECs do not state.

        Returns:
            this object if they add nothing.
        """
        new: dict[Job, list[SoloProfile]] = {}
        for observation in observations:
            if len(observation.colocation_set.workloads) > 1:
                continue
            workload, stated = observation.workload, observation.workload.solo
            values = {name: getattr(observation, name) for name in NAMES if getattr(stated, name) is None}
            if any(value is not None for value in values.values()):
                asked = observation.colocation_set
                slice_open = leaves_slices_open(asked.device, asked.sharing)
                job = asked.device, slice_open, self._one_spelling(workload.without_solo())
                new.setdefault(job, []).append(SoloProfile(**values))
        if not new:
            return self
        more = {
            job: Alone.of((*(self._alone[job].profiles if job in self._alone else ()), *profiles), job[0])
            for job, profiles in new.items()
        }
        return self._and(more)

    def _and(self, more: Mapping[Job, Alone]) -> MeasuredAlone:
        """With other knowledge of some jobs; what was found of all others is kept."""
        result = MeasuredAlone({**self._alone, **more}, self._one_spelling)
        with self._lock:
            result._told, result._spelled = self._told.copy(), self._spelled.copy()
        for job in more:
            for spelled in result._spelled.pop(job, ()):
                result._told.pop(spelled, None)
        for known, numbers in list(self._numbers.items()):
            numbers = numbers.copy()
            numbers[known.of_jobs(more, len(numbers))] = _UNKNOWN
            result._numbers[known] = numbers
        return result

    def about(self, device: str, sharing: str, workload: Workload) -> Told | None:
        """What to tell of a job; None if nothing was observed that its SPEC does not state."""
        job = device, leaves_slices_open(device, sharing), workload
        told = self._told.get(job)
        if told is not None:
            return told
        spelling = self._one_spelling(workload.without_solo())
        plain = device, job[1], spelling
        alone = self._alone.get(plain)
        if alone is None and job[1]:
            # A job alone has the whole card; but what ran in some slice says nothing of the card.
            alone = self._alone.get((device, False, spelling))
        missing = {} if alone is None else alone.missing(workload)
        if alone is None or not missing:
            return None
        words = alone.in_words([name for name in NAMES if name in missing])
        told = Told(
            replace(workload, solo=replace(workload.solo, **missing)),
            str(workload),
            f"{workload.model}: its {words} alone on {device} replaced the prediction",
        )
        with self._lock:
            if len(self._told) >= _KEPT:
                self._told, self._spelled = {}, {}
            self._told[job] = told
            for known in {plain, (device, False, spelling)}:
                self._spelled[known] = (*self._spelled.get(known, ()), job)
        return told

    def by_prefix(self, device: str, sharing: str, workload: Workload) -> dict[int, SoloProfile]:
        """What was observed of a job, by the number of layers that were frozen."""
        plain, slice_open = self._one_spelling(workload.without_solo()), leaves_slices_open(device, sharing)
        return {
            job.frozen_prefix: alone.solo
            for (place, in_slice, job), alone in self._alone.items()
            if (place, in_slice, job.model) == (device, slice_open, plain.model)
            and replace(job, frozen_prefix=plain.frozen_prefix) == plain
        }

    def told(self, device: str, sharing: str, workload: Workload) -> Workload:
        """The job with what was observed of it stated."""
        told = self.about(device, sharing, workload)
        return workload if told is None else told.workload

    def told_sets(self, sets: Sequence[ColocationSet]) -> tuple[Sequence[ColocationSet], Sequence[Notes]]:
        """The sets with all that was observed of their jobs alone stated, and per set what that was."""
        if not self._alone:
            return sets, [NO_NOTES] * len(sets)
        # A workload is hashed once, even if it is in thousands of sets.
        known: dict[tuple[str, str, int], Told | None] = {}
        result, notes = [], []
        for s in sets:
            device, sharing, found = s.device, s.sharing, []
            for w in s.workloads:
                key = device, sharing, id(w)
                if key not in known:
                    known[key] = self.about(device, sharing, w)
                found.append(known[key])
            if any(found):
                members = tuple(
                    [w if t is None else t.workload for w, t in zip(s.workloads, found, strict=True)]
                )
                s = ColocationSet(device, members, sharing)
            result.append(s)
            notes.append(Notes(found))
        return result, notes

    def told_members(self, known: KnownMembers, predictor: SetPredictor) -> Integers:
        """[V] number of each known member once that is stated; its own where nothing was observed."""
        if not self._alone:
            return np.arange(len(known.members))
        before = self._numbers.get(known, np.zeros(0, np.int64))
        keys = known.keys()  # read once, and last, because other threads extend it too
        result = np.full(max(keys, default=-1) + 1, _UNKNOWN)
        result[: len(before)] = before
        places, told = [], []
        for number in np.flatnonzero(result == _UNKNOWN).tolist():
            if number not in keys:
                result[number] = number
                continue
            workload, device, sharing = keys[number]
            now = self.told(device, sharing, workload)
            if now is workload:
                result[number] = number
            else:
                places.append(number)
                told.append((now, device, sharing))
        new = [key for key in dict.fromkeys(told) if key not in known]
        if new:
            # Of a job whose step time some SPEC states, perhaps only the rest was observed.
            sets = [ColocationSet(device, (w,), sharing) for w, device, sharing in new]
            known.numbers(new, predictor.predict_arrays(sets).solo_step_time_s[:, 0].tolist())
        if places:
            result[places] = known.numbers(told)
        self._numbers[known] = result
        return result

    def told_rows(
        self,
        seen: Observed,
        kept: Integers,
        told: Integers,
        predictor: SetPredictor,
        earlier: Observed,
        kept_earlier: Integers,
    ) -> Observed:
        """The observations with the members and answers of the sets once that is stated.

        Observations of jobs alone stay as they are: what they say of other jobs is how far off the prediction
        was.

        Args:
            seen: with the answers for the sets as they were observed.
            kept: the rows that matter.
            told: from `told_members`.
            predictor: asked about rows that have changed.
            earlier: the result for fewer observations, which saves time and changes nothing; kept_earlier: the rows that
                mattered then.
        """
        if not self._alone:
            return seen
        together = (seen.partners >= 0).any(1)
        own = np.where(together, told[seen.own], seen.own)
        partners = np.where(seen.partners >= 0, told[seen.partners], -1)
        columns = {name: getattr(seen, name).copy() for name in _PREDICTED}
        differs = (own != seen.own) | (partners != seen.partners).any(1)
        asked = np.intersect1d(np.flatnonzero(differs), kept)
        done = np.intersect1d(asked, kept_earlier)
        width = earlier.partners.shape[1]
        done = done[
            (own[done] == earlier.own[done])
            & (partners[done][:, :width] == earlier.partners[done]).all(1)
            & (partners[done][:, width:] < 0).all(1)
        ]
        for name, column in columns.items():
            column[done] = getattr(earlier, name)[done]
        new = np.setdiff1d(asked, done)
        if len(new):
            sets, _ = self.told_sets([set_of(seen.keys[row]) for row in new])
            expected = Expected.of(predictor, sets)
            for name, column in columns.items():
                column[new] = getattr(expected, name)
        return replace(seen, own=own, partners=partners, **columns)


class ToldTable:
    """Rows of a predictor's job table with what was observed of their jobs alone stated.

    Args:
        measured: what was observed.
        table: `predictor.answering.job_table.JobTable`.
    """

    def __init__(self, measured: MeasuredAlone, table: Any) -> None:
        self._measured, self._table = measured, table
        self._row: Integers = np.zeros(0, np.int64)

    def __call__(self, rows: Integers) -> Integers:
        """[S, M] rows, -1 where there is none."""
        if not len(self._measured) or not rows.size:
            return rows
        # Read once, because other threads extend it too.
        known = self._row
        if len(known) <= rows.max():
            keys = self._table.keys[len(known) :]
            told = [(self._measured.told(device, mode, w), device, mode) for w, device, mode in keys]
            known = self._row = np.concatenate([known, np.array(self._table.rows(told), np.int64)])
        return np.where(rows >= 0, known[rows], rows)
