"""Shared by packing policies: the state of shared GPUs in arrays, and the greedy loop over a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from profiling.workload import Workload
from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.placement.gangs import Pool, exclusive_gpus, solo_step_s
from scheduling.placement.ranking import Candidates

# Seconds after which the predicted end of a GPU's jobs is recomputed even if nothing changed there.
_ENDS_AGE_S = 300.0


@dataclass(slots=True)
class _Ends:
    """[G] when each GPU is predicted to become empty, when this was computed, and the GPU's stamp at that
    time."""

    at_s: Floats
    computed_s: Floats
    stamp: Ints
    revision: int


@dataclass(slots=True)
class Tenancy:
    """Tenants of every GPU as numbers, [G, M].

    Attributes:
        members: workload numbers of `cache`.
        left, rate, updated_s: iterations left at `updated_s`, iterations per second, and that time.
        present: which positions have a tenant.
        shareable: [G] holds no gang and no job that must be alone.
        stoppable: which tenants may be stopped, from `resume_s` on.
        seen: [G] stamp of the GPU when its row was filled in.
        ends: predicted times at which GPUs become empty.
    """

    cache: SetCache
    devices: Ints
    members: Ints
    left: Floats
    rate: Floats
    updated_s: Floats
    present: NDArray[np.bool_]
    shareable: NDArray[np.bool_]
    stoppable: NDArray[np.bool_]
    resume_s: Floats
    seen: Ints
    ends: _Ends

    @classmethod
    def of(cls, snapshot: SchedulingSnapshot, belief: SetCache, width: int) -> Tenancy:
        """The tenancy of `snapshot`, cached with it and updated."""
        tenancy = snapshot.derived(("tenancy", belief, width), lambda: cls._empty(snapshot, belief, width))
        tenancy.refresh(snapshot)
        return tenancy

    @classmethod
    def _empty(cls, snapshot: SchedulingSnapshot, belief: SetCache, width: int) -> Tenancy:
        count, shape = len(snapshot), (len(snapshot), width)
        devices = [belief.device_id(d, s) for d, s in zip(snapshot.devices, snapshot.sharing, strict=True)]
        return cls(
            cache=belief,
            devices=np.array(devices, np.int64),
            members=np.zeros(shape, np.int64),
            left=np.zeros(shape),
            rate=np.zeros(shape),
            updated_s=np.zeros(shape),
            present=np.zeros(shape, bool),
            shareable=np.ones(count, bool),
            stoppable=np.zeros(shape, bool),
            resume_s=np.zeros(shape),
            seen=np.full(count, -1, np.int64),
            ends=_Ends(np.zeros(count), np.full(count, -np.inf), np.full(count, -1, np.int64), -1),
        )

    def refresh(self, snapshot: SchedulingSnapshot) -> None:
        for gpu in np.flatnonzero(self.seen != snapshot.stamp).tolist():
            tenants = snapshot.tenants[gpu]
            self.present[gpu] = self.stoppable[gpu] = False
            self.shareable[gpu] = all(len(t.gpus) == 1 and not t.exclusive for t in tenants)
            for column, tenant in enumerate(tenants[: self.members.shape[1]]):
                self.members[gpu, column] = self.cache.workload_id(current_workload(tenant))
                self.left[gpu, column], self.rate[gpu, column] = tenant.believed(tenant.left), tenant.rate
                self.updated_s[gpu, column] = tenant.updated_s
                self.present[gpu, column] = True
                self.stoppable[gpu, column] = tenant.job.preemptible and bool(self.shareable[gpu])
                self.resume_s[gpu, column] = tenant.resume_s
            self.seen[gpu] = snapshot.stamp[gpu]

    def empty_in_s(self, snapshot: SchedulingSnapshot) -> Floats:
        """[G] predicted seconds until each GPU becomes empty if no job joins it; 0 if it is empty.

        Recomputed where something changed, and periodically elsewhere, because a job's pace may differ from
        the prediction.
        """
        ends, now_s = self.ends, snapshot.now_s
        if ends.revision != self.cache.revision:
            ends.revision = self.cache.revision
            ends.stamp[:] = -1
        stale = (ends.stamp != snapshot.stamp) | (ends.computed_s < now_s - _ENDS_AGE_S)
        gpus = np.flatnonzero(stale & (snapshot.tenant_count > 0))
        if gpus.size:
            follow = self.candidates(snapshot, gpus).as_is(self.cache)
            ends.at_s[gpus] = now_s + follow.finish_s.max(axis=1)
            ends.computed_s[gpus], ends.stamp[gpus] = now_s, snapshot.stamp[gpus]
        return np.where(snapshot.tenant_count > 0, np.maximum(ends.at_s - now_s, 0.0), 0.0)

    def alone_s(self, snapshot: SchedulingSnapshot) -> Floats:
        """[G, M] predicted seconds that each tenant still needs if alone on its GPU.

        0 where there is none.
        """
        state = self.candidates(snapshot, np.arange(len(snapshot)))
        steps = np.zeros((int(self.members.max()) + 1, len(snapshot.types)))
        for number in np.unique(self.members[self.present]).tolist():
            steps[number] = solo_step_s(snapshot, self.cache, self.cache.workloads[number])
        left = state.iterations > 0  # of a tenant that is present
        alone = np.where(left, steps[self.members, snapshot.type_of[:, None]], 0.0)
        return np.asarray(state.iterations * alone, float)

    def candidates(self, snapshot: SchedulingSnapshot, gpus: Ints) -> Candidates:
        """`gpus` as input of the ranking, with the iterations left now."""
        present = self.present[gpus]
        gone = self.rate[gpus] * (snapshot.now_s - self.updated_s[gpus])
        left = np.where(present, np.maximum(self.left[gpus] - gone, 0.0), 0.0)
        return Candidates(
            self.devices[gpus], self.members[gpus], left, present, np.full(present.shape, np.nan)
        )


def shared_gpus(snapshot: SchedulingSnapshot, tenancy: Tenancy, max_members: int) -> Ints:
    """GPUs with tenants and room for one more."""
    count = snapshot.tenant_count
    return np.flatnonzero((count > 0) & (count < max_members) & tenancy.shareable)


Demand = Callable[[str, str, Workload], float]


def pack(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    order: Iterable[JobState],
    demand: Demand,
    budget: float = np.inf,
    max_members: int = 2,
) -> list[Allocation]:
    """Start the jobs of `order` on whole empty GPUs, or else where the sum of demands is smallest.

    Args:
        snapshot: the cluster.
        belief: predictions.
        order: jobs, in order.
        demand: demand of a workload on (device, sharing mode); called once for each.
        budget: largest sum of demands on one GPU.
        max_members: most jobs on one GPU.
    """
    tenancy = Tenancy.of(snapshot, belief, max_members)
    pool, started = Pool(snapshot), []
    shared = OpenGpus(tenancy, shared_gpus(snapshot, tenancy, max_members))
    kinds: list[tuple[str, str]] = []
    load = np.zeros(0)  # of each shared GPU; not needed while jobs find empty ones
    memo: dict[tuple[str, str, Workload], float] = {}

    def asked(kind: tuple[str, str], workload: Workload) -> float:
        key = (*kind, workload)
        if key not in memo:
            memo[key] = demand(*key)
        return memo[key]

    refused: set[Workload] = set()
    for job in order:
        if not any(pool.free_of_type) and not shared.left:
            break
        gpus = exclusive_gpus(pool, belief, job)
        workload = job.job.workload
        if not gpus and may_share(job) and workload not in refused:
            if len(kinds) < len(shared.gpus):
                gpus_open = shared.gpus.tolist()
                kinds = [(snapshot.devices[g], snapshot.sharing[g]) for g in gpus_open]
                tenants = (map(current_workload, snapshot.tenants[g]) for g in gpus_open)
                load = np.array(
                    [sum(asked(k, w) for w in own) for k, own in zip(kinds, tenants, strict=True)]
                )
            total = load + np.array([asked(kind, workload) for kind in kinds])
            allowed = shared.fits(job) & (total <= budget)
            if allowed.any():
                gpus = shared.take(int(np.argmin(np.where(allowed, total, np.inf))))
            else:
                refused.add(workload)  # GPUs only close while one decision is made
        if gpus:
            started.append(Allocation(job, gpus))
    return started


class OpenGpus:
    """Shared GPUs during one decision; whether a workload fits beside their tenants is computed once.

    Attributes:
        gpus: [N] numbers of the GPUs.
        open: [N] those on which this decision has not placed a job yet.
        left: number of open ones.
    """

    def __init__(self, tenancy: Tenancy, gpus: Ints) -> None:
        self.gpus, self.open = gpus, np.ones(len(gpus), bool)
        self.left = len(gpus)
        self._tenancy = tenancy
        self._known: dict[int, NDArray[np.bool_]] = {}

    def fits(self, job: JobState) -> NDArray[np.bool_]:
        """[N] whether the GPU is open and the predicted memory of its tenants and `job` together fits."""
        cache, gpus = self._tenancy.cache, self.gpus
        own = cache.workload_id(job.job.workload)
        if own not in self._known:
            members = np.column_stack([self._tenancy.members[gpus], np.full((len(gpus), 1), own)])
            present = np.column_stack([self._tenancy.present[gpus], np.ones(len(gpus), bool)])
            order = np.argsort(np.where(present, members, np.iinfo(np.int64).max), axis=1, kind="stable")
            at = np.arange(len(gpus))[:, None]
            rows = cache.rows(self._tenancy.devices[gpus], members[at, order], present[at, order])
            self._known[own] = cache.fits[rows]
        return self._known[own] & self.open

    def take(self, index: int) -> tuple[int]:
        """Close the GPU at `index`, and return its number."""
        self.open[index] = False
        self.left -= 1
        return (int(self.gpus[index]),)


def may_share(job: JobState) -> bool:
    """Whether a job may share a GPU: not gangs, nor jobs that ran out of memory beside others."""
    return job.job.gpus == 1 and not job.exclusive
