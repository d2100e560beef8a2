"""`SchedulingSnapshot`: a policy's view, updated in place so that 82,000 jobs do not mean 82,000 copies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar, cast

import numpy as np

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import Ints
from scheduling.core.snapshot import ClusterSnapshot

Derived = TypeVar("Derived")


class WaitingQueue(dict[int, JobState]):
    """Waiting jobs by number, in order of submission.

    `entered` logs who joined, for orders that are kept up to date.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[JobState] = []

    def __setitem__(self, number: int, job: JobState) -> None:
        last = next(reversed(self), -1)
        super().__setitem__(number, job)
        self.entered.append(job)
        if number < last:  # a returning job goes to its place by submission
            ordered = sorted(self.items())
            self.clear()
            self.update(ordered)


class SchedulingSnapshot:
    """Cluster, running jobs and queue at one moment. Read-only for policies.

    Args:
        cluster: nodes and GPUs; tenants in it count as running jobs of one GPU that cannot be stopped.

    Attributes:
        now_s: time.
        devices, sharing: type and sharing mode of each GPU, by number.
        types: device types in the cluster's order; `type_of`: [G] index into it; `node_of`: [G]; `node_type`: [N].
        type_sharing: sharing mode of the first GPU of each type.
        switch_of: [N] number of the switch that a node's links name; nodes without one count as under one switch.
        node_gpus: GPU numbers of each node; one with GPUs of two types counts as two nodes.
        tenants: jobs on each GPU.
        free: [N] empty GPUs of each node.
        tenant_count: [G].
        waiting: jobs in the queue by submission; running: jobs that hold GPUs.
        down: GPUs of failed nodes; each has a placeholder tenant that is not in `running`.
        up_of_type: [types] GPUs of each type that are not down.
        refused: when a start first ran out of memory although the job was alone, by (workload, type number).
        stamp: [G] changes whenever the tenants of a GPU or their pace change.
    """

    def __init__(self, cluster: ClusterSnapshot) -> None:
        self.cluster = cluster
        places = list(cluster.gpus())
        if not places:
            raise InputError("the cluster has no GPU", expected="at least one node with one GPU", got="none")
        self.now_s = 0.0
        self.devices = [gpu.device for _, gpu in places]
        self.sharing = [gpu.sharing for _, gpu in places]
        self.names = [(node.name, gpu.id) for node, gpu in places]
        self.types = list(dict.fromkeys(self.devices))
        index = {name: k for k, name in enumerate(self.types)}
        self.type_of: Ints = np.array([index[d] for d in self.devices], np.int64)
        self.type_sharing = [self.sharing[self.devices.index(name)] for name in self.types]
        # A node with GPUs of two types counts as two, without loss, because a gang uses one type.
        groups: dict[tuple[str, str], list[int]] = {}
        for number, ((node, _), device) in enumerate(zip(places, self.devices, strict=True)):
            groups.setdefault((node.name, device), []).append(number)
        self.node_gpus: list[list[int]] = list(groups.values())
        self.node_of: Ints = np.zeros(len(places), np.int64)
        for index_of_node, numbers in enumerate(self.node_gpus):
            self.node_of[numbers] = index_of_node
        self.node_type: Ints = np.array([self.type_of[g[0]] for g in self.node_gpus], np.int64)
        self.tenants: list[list[JobState]] = [[] for _ in places]
        self.free: Ints = np.array([len(g) for g in self.node_gpus], np.int64)
        self.tenant_count: Ints = np.zeros(len(places), np.int64)
        self.stamp: Ints = np.zeros(len(places), np.int64)
        self._derived: dict[Hashable, tuple[Hashable, object]] = {}
        self.switch_of = _switches(cluster, [self.names[g[0]][0] for g in self.node_gpus])
        self.nodes_of_type = [np.flatnonzero(self.node_type == t) for t in range(len(self.types))]
        self.node_size = np.array([len(g) for g in self.node_gpus], np.int64)
        # The largest node of each type.
        self.gpus_per_node = {
            t: int(self.node_size[n].max()) for t, n in zip(self.types, self.nodes_of_type, strict=True)
        }
        self.waiting = WaitingQueue()
        self.running: dict[int, JobState] = {}
        self.refused: dict[tuple[Workload, int], float] = {}
        self.free_of_type: Ints = np.bincount(self.type_of, minlength=len(self.types)).astype(np.int64)
        self.type_size: Ints = self.free_of_type.copy()
        self.up_of_type: Ints = self.type_size.copy()
        self.down: set[int] = set()
        for gpu_number, (_, gpu) in enumerate(places):
            for tenant in gpu.tenants:
                job = TraceJob(
                    tenant.job_id or f"tenant-{len(self.running)}",
                    tenant.job,
                    max(tenant.iterations_left, 1e-9),
                    preemptible=False,
                )
                state = JobState(
                    job, -1 - len(self.running), job.iterations, gpus=(gpu_number,),
                    frozen_prefix=tenant.job.frozen_prefix,
                )  # fmt: skip
                self.running[state.number] = state
                self.occupy(state)

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def up(self) -> int:
        """GPUs that are not down."""
        return len(self.devices) - len(self.down)

    def derived(self, key: Hashable, make: Callable[[], Derived], version: Hashable = None) -> Derived:
        """A value that a policy derived from this snapshot and caches with it.

        It is created if `key` is new, and again, in place of the old one, if `version` is another.
        """
        known = self._derived.get(key)
        if known is None or known[0] != version:
            known = self._derived[key] = (version, make())
        return cast(Derived, known[1])

    def left(self, job: JobState) -> float:
        """Iterations that `job` is believed to have left at `now_s`."""
        left = max(job.left - job.rate * max(self.now_s - max(job.updated_s, 0.0), 0.0), 0.0)
        return job.believed(left)

    def attained_gpu_s(self, job: JobState) -> float:
        """GPU-seconds that `job` has held up to `now_s`."""
        return job.attained_gpu_s + len(job.gpus) * (self.now_s - job.updated_s)

    def movable(self, job: JobState) -> bool:
        """Whether a running job may be stopped or moved: it is preemptible and not in the middle of a restart."""
        return job.job.preemptible and job.resume_s <= self.now_s

    def active(self) -> Iterator[JobState]:
        """Running and waiting jobs."""
        yield from self.running.values()
        yield from self.waiting.values()

    def occupy(self, job: JobState) -> None:
        """Enter `job` on the GPUs it holds (the simulator's side)."""
        for gpu in job.gpus:
            if not self.tenants[gpu]:
                self.free[self.node_of[gpu]] -= 1
                self.free_of_type[self.type_of[gpu]] -= 1
            self.tenants[gpu].append(job)
            self.tenant_count[gpu] += 1
            self.stamp[gpu] += 1

    def vacate(self, job: JobState) -> None:
        """Take `job` off the GPUs it holds (the simulator's side)."""
        for gpu in job.gpus:
            self.tenants[gpu].remove(job)
            self.tenant_count[gpu] -= 1
            self.stamp[gpu] += 1
            if not self.tenants[gpu]:
                self.free[self.node_of[gpu]] += 1
                self.free_of_type[self.type_of[gpu]] += 1

    def fail(self, placeholders: Iterable[JobState]) -> None:
        """Take the GPUs of these placeholder jobs, which are empty, out of service (the simulator's side)."""
        for job in placeholders:
            self.occupy(job)
            self.down.update(job.gpus)
            np.subtract.at(self.up_of_type, self.type_of[list(job.gpus)], 1)

    def repair(self, gpus: Iterable[int]) -> None:
        """Put failed GPUs back into service (the simulator's side)."""
        for gpu in gpus:
            self.vacate(self.tenants[gpu][0])
            self.down.discard(gpu)
            self.up_of_type[self.type_of[gpu]] += 1


def _switches(cluster: ClusterSnapshot, nodes: list[str]) -> Ints:
    """[N] number of the switch of each node: the end of one of its links that is not a node."""
    names = {node.name for node in cluster.nodes}
    switch: dict[str, str] = {}
    for link in cluster.links:
        for node, other in ((link.source, link.target), (link.target, link.source)):
            if node in names and other not in names:
                switch.setdefault(node, other)
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(switch.get(node, ""), len(numbers)) for node in nodes], np.int64)
