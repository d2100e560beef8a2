"""Memory of jobs of which another batch size or frozen prefix was observed alone on the device."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.fitted.device_memory import activation_factor, member_memory_bytes, process_bytes
from predictor.gaussian_process.known_members import Numbers
from profiling.devices import leaves_slices_open
from profiling.workload import SoloProfile, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.learning.evidence.measured_alone import Job, MeasuredAlone

# Observed over predicted memory, without state, beyond which an observation says nothing of other jobs: it has another
# unit, or is of something else.
MOST_OFF = 3.0
# A framework that reserves the device takes about this much of it, whatever the job needs.
_RESERVED = 0.9


# Batch size, passes, minus the frozen prefix; none takes less memory when larger.
_Load = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Seen:
    """An observation: load, log of the predicted bytes besides state, log of how far off they are, and bytes."""

    load: _Load
    log_size: float
    log_off: float
    memory_bytes: float


class _Jobs:
    """The rows of a job table with their families, in which jobs differ in load only."""

    def __init__(self, predictor: Any, spelled: Callable[[Workload], Workload]) -> None:
        self.table, self.heads = predictor.table_, predictor.fitted_.heads
        self._featurizer, self._spelled = predictor.fitted_.model.featurizer, spelled
        self._numbers = Numbers()
        self._lock = threading.Lock()
        self.rows: dict[int, list[int]] = {}
        self._family: list[int] = []
        self.load: list[_Load] = []

    def read(self) -> int:
        """Take in the table's new rows, and return how many it has."""
        with self._lock:
            keys = self.table.keys
            for row in range(len(self.load), len(keys)):
                workload, device, mode = keys[row]
                plain = workload.without_solo()
                family = self._numbers[self._name(device, leaves_slices_open(device, mode), plain)]
                self._family.append(family)
                self.load.append(_load(self._featurizer.job(plain, device).workload))
                self.rows.setdefault(family, []).append(row)
            return len(self.load)

    def family(self, device: str, in_slice: bool, workload: Workload) -> int:
        """Number of a job's family."""
        with self._lock:
            return self._numbers[self._name(device, in_slice, workload.without_solo())]

    def families(self, start: int, stop: int) -> set[int]:
        """Of some rows."""
        return set(self._family[start:stop])

    def _name(self, device: str, in_slice: bool, workload: Workload) -> Job:
        plain = replace(self._spelled(workload), batch_size=None, gradient_accumulation=1, frozen_prefix=0)
        return device, in_slice, plain

    def seen(self, key: Job, memory_bytes: float) -> _Seen | None:
        """What was observed of a job; None if it is implausible, or the framework may have reserved the device."""
        device, _, workload = key
        job = self._featurizer.job(workload, device)
        state = job.demand.state_bytes
        size = member_memory_bytes(job, SoloProfile(), self.heads) - state
        # An optimiser may allocate less than predicted (`fused=True`), which says nothing of larger batches.
        activations = activation_factor(job, self.heads) * job.demand.activation_bytes
        least, rest = process_bytes(job, self.heads) + activations, memory_bytes - state
        off = rest / min(max(rest, least), size) if size > 0.0 else 0.0
        reserved = workload.framework != "torch" and memory_bytes > _RESERVED * job.device.memory_bytes
        if reserved or not 1.0 / MOST_OFF <= off <= MOST_OFF:
            return None
        return _Seen(_load(job.workload), math.log(size), math.log(off), memory_bytes)


class RelatedMemory:
    """Memory in bytes of the rows of a job table, in accordance with observations of related jobs.

    Parameters, gradients and optimiser state are known, and the rest is off by the same factor as with an observed
    batch size (1 if its optimiser may have allocated less than predicted); between two, the log of the factor is
    interpolated. A larger batch, more passes or fewer frozen layers take no less memory than was observed, and vice
    versa. Of another frozen prefix, a factor above 1 carries over only to fewer frozen layers and one below 1 only to
    more, as this order requires: the largest workspace is often of a layer that one of them freezes.

    Args:
        predictor: with a job table, a featurizer and calibrated heads.
        spelled: one spelling of a job.
        measured: what was observed of jobs alone.
        earlier: the result for fewer observations, which saves time and changes nothing.
    """

    def __init__(
        self,
        predictor: Any,
        spelled: Callable[[Workload], Workload],
        measured: MeasuredAlone,
        earlier: RelatedMemory | None = None,
    ) -> None:
        self._jobs: _Jobs = _Jobs(predictor, spelled) if earlier is None else earlier._jobs
        self._told: dict[Job, float] = {} if earlier is None else dict(earlier._told)
        # By family, then by job.
        self._seen: dict[int, dict[Job, _Seen]] = {} if earlier is None else dict(earlier._seen)
        new = {job: value for job, value in memory_of(measured).items() if self._told.get(job) != value}
        told = frozenset(self._tell(job, value) for job, value in new.items())
        memory, stale = (np.zeros(0), frozenset[int]()) if earlier is None else earlier._current
        # What was computed, and the families of which more was observed; in one, because other threads read it too.
        self._current: tuple[Floats, frozenset[int]] = memory, stale | told

    def _tell(self, job: Job, memory_bytes: float) -> int:
        self._told[job] = memory_bytes
        family, one = self._jobs.family(*job), self._jobs.seen(job, memory_bytes)
        others = {other: seen for other, seen in self._seen.get(family, {}).items() if other != job}
        self._seen[family] = others if one is None else {**others, job: one}
        return family

    def __call__(self) -> Floats:
        """[R] of all rows of the table."""
        (memory, stale), table = self._current, self._jobs.table
        start = len(memory)
        if start == len(table.keys) and not stale:
            return memory
        count = self._jobs.read()
        memory = np.concatenate([memory, table.memory_bytes[start:count]])
        for family in (stale | self._jobs.families(start, count)) & self._seen.keys():
            rows = np.array(self._jobs.rows.get(family, []), np.int64)
            rows = rows[(rows < count) & ((rows >= start) | (family in stale))]
            if len(rows):
                memory[rows] = self._of_rows(family, rows)
        self._current = memory, frozenset()
        return memory

    def _of_rows(self, family: int, rows: Integers) -> Floats:
        table, seen = self._jobs.table, sorted(self._seen[family].values(), key=lambda one: one.log_size)
        predicted, state = table.memory_bytes[rows], table.state_bytes[rows]
        if not seen:
            return np.asarray(predicted)
        load = np.array([self._jobs.load[row] for row in rows])
        return np.where(table.memory_measured[rows], predicted, _related(seen, load, predicted, state))

    def reason(self, device: str, sharing: str, workload: Workload) -> str:
        """What a job's memory stands on, in words; empty if it is predicted or measured itself."""
        if workload.solo.memory_bytes is not None:
            return ""
        seen = len(
            self._seen.get(self._jobs.family(device, leaves_slices_open(device, sharing), workload), ())
        )
        if not seen:
            return ""
        jobs = "a job that differs" if seen == 1 else f"{seen} jobs that differ"
        return (
            f"{workload.model}: its memory follows from that observed alone of {jobs} in batch size, passes or "
            "frozen layers"
        )


def _load(captured: Workload) -> _Load:
    return captured.batch_size or 0, captured.gradient_accumulation, -captured.frozen_prefix


def memory_of(measured: MeasuredAlone) -> Mapping[Job, float]:
    """Memory in bytes that was observed of jobs alone."""
    jobs = measured.jobs.items()
    return {job: value for job, alone in jobs if (value := alone.solo.memory_bytes) is not None}


def _related(seen: list[_Seen], load: Integers, predicted: Floats, state: Floats) -> Floats:
    """[R] bytes of jobs of one family.

    Args:
        seen: observations by ascending size.
        load: [R, 3] of the jobs; predicted: [R] bytes; state: [R] known part of these.
    """
    rest = np.maximum(predicted - state, 1.0)
    value = state + rest * np.exp(_off(seen, load[:, 2], np.log(rest)))
    of_seen, memory = np.array([one.load for one in seen]), np.array([one.memory_bytes for one in seen])
    less = (of_seen[:, None] <= load).all(2)
    more = (of_seen[:, None] >= load).all(2)
    low = np.where(less, memory[:, None], -np.inf).max(0)
    high = np.where(more, memory[:, None], np.inf).min(0)
    return np.maximum(np.clip(value, np.minimum(low, high), np.maximum(low, high)), state)


def _off(seen: list[_Seen], prefix: Integers, log_size: Floats) -> Floats:
    """[R] logs of how far off predictions of sizes are, with the third number of the loads."""
    result = np.zeros(len(prefix))
    for own in np.unique(prefix).tolist():
        here = prefix == own
        alike = [one for one in seen if one.load[2] == own]
        if alike:
            result[here] = _between(alike, log_size[here])
            continue
        more = _between([one for one in seen if one.load[2] < own], log_size[here])
        fewer = _between([one for one in seen if one.load[2] > own], log_size[here])
        result[here] = np.maximum(more, 0.0) + np.minimum(fewer, 0.0)
    return result


def _between(seen: list[_Seen], log_size: Floats) -> Floats:
    if not seen:
        return np.zeros(len(log_size))
    return np.interp(log_size, [one.log_size for one in seen], [one.log_off for one in seen])
