"""The order of a queue, and what keeps a job at its end from waiting for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiling.errors import InputError
from scheduling.core.job import JobState
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import shortest_first, solo_step_s
from scheduling.placement.packing import Tenancy
from scheduling.placement.stages import stages

ORDERS = ("fifo", "shortest")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """How a queue is read.

    Attributes:
        order: which waiting jobs are looked at first: `fifo` by submission, `shortest` by the least predicted time left
            alone on the fastest type.
        batch: how many of them are decided jointly at a time.
        aging_s: seconds of waiting after which a job is overdue. The overdue job that was submitted first is decided
            before all others; where nothing can take it, the GPUs that fall empty for it first are kept for it.
    """

    order: str = "shortest"
    batch: int = 32
    aging_s: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InputError("order is not known", expected="one of " + ", ".join(ORDERS), got=self.order)
        if self.batch < 1:
            raise InputError("batch is out of range", expected="an integer from 1", got=self.batch)
        if not self.aging_s >= 0:
            raise InputError("aging_s is out of range", expected="seconds from 0", got=self.aging_s)


def in_order(snapshot: SchedulingSnapshot, belief: SetCache, config: QueueConfig) -> list[JobState]:
    """The waiting jobs as `config` orders them."""
    waiting = list(snapshot.waiting.values())
    if config.order == "shortest":
        return shortest_first(snapshot, belief, waiting)
    return waiting


def first_overdue(snapshot: SchedulingSnapshot, belief: SetCache, aging_s: float) -> JobState | None:
    """Of the jobs that waited at least `aging_s`, the one that was submitted first; not one that the cluster is too small for."""
    for job in snapshot.waiting.values():
        if job.waited_s + snapshot.now_s - job.waiting_since_s >= aging_s:
            steps = np.array(solo_step_s(snapshot, belief, job.job.workload))
            if (np.isfinite(steps) & (snapshot.type_size >= job.job.gpus)).any():
                return job
    return None


def first_empty(snapshot: SchedulingSnapshot, belief: SetCache, tenancy: Tenancy, job: JobState) -> Ints:
    """The whole GPUs on which `job` would be done first if nobody else was put on them.

    On one node, as a gang is placed, unless no node is large enough. Nothing where the cluster is too small.
    """
    state = tenancy.candidates(snapshot, np.arange(len(snapshot)))
    nobody = np.zeros_like(state.present)
    follow = stages(tenancy.cache, state.devices, state.members, state.iterations, state.present, nobody)
    ends = follow.finish_s.max(axis=1, initial=0.0)
    count, left = job.job.gpus, snapshot.left(job)
    best, found = np.inf, np.zeros(0, np.int64)
    for kind, step in enumerate(solo_step_s(snapshot, belief, job.job.workload)):
        nodes: Sequence[Ints] = [np.array(snapshot.node_gpus[n]) for n in snapshot.nodes_of_type[kind]]
        for gpus in [n for n in nodes if len(n) >= count] or [np.concatenate(nodes)]:
            first = gpus[np.argsort(ends[gpus], kind="stable")[:count]]
            done = float(ends[first].max()) + left * step
            if len(first) == count and done < best:
                best, found = done, first
    return found
