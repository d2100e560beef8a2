"""Ground truth of the simulator: step times that the policy does not see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from predictor.types import SetPredictor
from profiling.workload import Workload
from scheduling.core.batches import BatchRange
from scheduling.core.job import JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot

# A job resized to k times its GPUs makes k ** SCALING times the progress.
SCALING = 0.9


class Segment(NamedTuple):
    """A job's progress from now on: iterations per second, until `until` are left."""

    rate: float
    until: float = 0.0


class GroundTruth(Protocol):
    """Step time for (job, allocation, co-tenants, frozen prefix); all four are in the job and the snapshot.

    Arguments are positional.
    """

    def segment(self, job: JobState, snapshot: SchedulingSnapshot, /) -> Segment:
        """Progress of `job` on the GPUs it holds, beside any other tenants."""
        ...

    def fits(self, members: Sequence[JobState], gpu: int, snapshot: SchedulingSnapshot, /) -> bool:
        """Whether the memory of all `members` fits on `gpu`."""
        ...

    def restart_s(self, job: JobState, first: bool, snapshot: SchedulingSnapshot, /) -> float:
        """Seconds of checkpoint and restart when `job` starts (`first`), moves or resumes on the GPUs it holds."""
        ...

    def segment_done(self, job: JobState, /) -> None:
        """Called when `until` iterations are left and the job continues with another segment."""
        ...

    def affected(self, snapshot: SchedulingSnapshot, /) -> Iterable[JobState]:
        """Jobs beside the tenants of the same GPUs whose pace a change may change (on network links)."""
        ...


class SetTruth:
    """Step times of co-location sets from measurements (or any `SetPredictor`).

    A gang runs at the pace of its slowest GPU.

    Args:
        predictor: the measured table.
        restart_s: seconds to resume or move a job; a first start costs nothing.
        scatter: factor on the step time of a gang: (job, snapshot, its step time without an exchange); None: a
            gang that spans nodes is as fast as on one.
        scaling: a job resized to k times its GPUs makes k ** scaling times the progress.
        restart_bytes_per_s: a restart takes longer by the job's memory on the GPU divided by this rate.
    """

    def __init__(
        self,
        predictor: SetPredictor | SetCache,
        restart_s: float = 30.0,
        scatter: Callable[[JobState, SchedulingSnapshot, float], float] | None = None,
        scaling: float = SCALING,
        restart_bytes_per_s: float = float("inf"),
    ) -> None:
        self._restart_bytes_per_s = restart_bytes_per_s
        self.scaling = scaling
        self.cache = SetCache.of(predictor)
        self.resume_s = restart_s
        self._scatter = scatter
        self._solo: dict[tuple[str, str, Workload], float] = {}
        self._tuned: dict[tuple[str, str, Workload, BatchRange, int, int], float] = {}

    def segment(self, job: JobState, snapshot: SchedulingSnapshot) -> Segment:
        if job.job.batches is not None and all(len(snapshot.tenants[gpu]) == 1 for gpu in job.gpus):
            rate = self._tuned_rate(job, job.job.batches, snapshot)
            step_time_s = self.step_time_s(job, [job], job.gpus[0], snapshot)
        else:
            members = ((snapshot.tenants[gpu], gpu) for gpu in job.gpus)
            step_time_s = max(self.step_time_s(job, tenants, gpu, snapshot) for tenants, gpu in members)
            rate = (len(job.gpus) / job.job.gpus) ** self.scaling / step_time_s
        return Segment(rate / self.scattering(job, snapshot, step_time_s))

    def scattering(self, job: JobState, snapshot: SchedulingSnapshot, step_time_s: float) -> float:
        """Factor on the step time of `job` for the nodes that its GPUs span; 1 on one node."""
        if len(job.gpus) < 2 or self._scatter is None:
            return 1.0
        return self._scatter(job, snapshot, step_time_s)

    def _tuned_rate(self, job: JobState, batches: BatchRange, snapshot: SchedulingSnapshot) -> float:
        """Steps of its own batch per second with the best batch size on its GPUs, which are of one type.

        If its largest batch is too small for so many GPUs, it leaves some idle.
        """
        gpu, asked, workload = job.gpus[0], job.job.gpus, current_workload(job)
        device, sharing = snapshot.devices[gpu], snapshot.sharing[gpu]
        key = device, sharing, workload, batches, asked, len(job.gpus)
        if key not in self._tuned:
            steps = self.cache.steps_by_batch_s(
                self.cache.device_id(device, sharing), workload, batches.sizes
            )
            counts = range(len(job.gpus), 0, -1)
            rates = batches.progress(workload, asked, counts, steps, self.scaling)
            self._tuned[key] = float(rates[(rates > 0).argmax()])
        return self._tuned[key]

    def step_time_s(
        self, job: JobState, members: Sequence[JobState], gpu: int, snapshot: SchedulingSnapshot
    ) -> float:
        """Seconds per step of `job` on `gpu` among `members` (it is one of them)."""
        device, sharing = snapshot.devices[gpu], snapshot.sharing[gpu]
        own = current_workload(job)
        if len(members) == 1:
            key = (device, sharing, own)
            step_time_s = self._solo.get(key)
            if step_time_s is None:
                row = self.cache.solo(self.cache.device_id(device, sharing), self.cache.workload_id(own))
                step_time_s = self._solo[key] = float(self.cache.step_time_s[row, 0])
            return step_time_s
        ids = [self.cache.workload_id(current_workload(m)) for m in members]
        order = sorted(range(len(ids)), key=ids.__getitem__)
        row = self._row(device, sharing, [ids[k] for k in order])
        position = next(p for p, k in enumerate(order) if members[k] is job)
        return float(self.cache.step_time_s[row, position])

    def fits(self, members: Sequence[JobState], gpu: int, snapshot: SchedulingSnapshot) -> bool:
        ids = sorted(self.cache.workload_id(current_workload(m)) for m in members)
        # Done first, because it may grow the cache's arrays.
        row = self._row(snapshot.devices[gpu], snapshot.sharing[gpu], ids)
        return bool(self.cache.fits[row])

    def restart_s(self, job: JobState, first: bool, snapshot: SchedulingSnapshot) -> float:
        if first:
            return 0.0
        if self._restart_bytes_per_s == float("inf"):
            return self.resume_s
        device = self.cache.device_id(snapshot.devices[job.gpus[0]], snapshot.sharing[job.gpus[0]])
        row = self.cache.solo(device, self.cache.workload_id(job.job.workload))
        return self.resume_s + float(self.cache.memory_upper_bytes[row]) / self._restart_bytes_per_s

    def segment_done(self, _job: JobState) -> None:
        """A job has one segment."""

    def affected(self, _snapshot: SchedulingSnapshot) -> tuple[JobState, ...]:
        return ()

    def _row(self, device: str, sharing: str, ids: list[int]) -> int:
        member_ids = np.array([ids])
        devices = np.array([self.cache.device_id(device, sharing)])
        return int(self.cache.rows(devices, member_ids, np.ones(member_ids.shape, bool))[0])


def current_workload(job: JobState) -> Workload:
    """The job's workload with its current frozen prefix."""
    if job.frozen_prefix == job.job.workload.frozen_prefix:
        return job.job.workload
    return replace(job.job.workload, frozen_prefix=job.frozen_prefix)
