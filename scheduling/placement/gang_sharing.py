"""Gangs beside other jobs.

A gang runs at the pace of its slowest member, and joins only if more work gets done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.placement.gangs import by_switch, solo_step_s


class _Place(NamedTuple):
    """A GPU available to a member of the gang.

    Attributes:
        step_time_s: of the member there; tenant_ratio: remaining speed of its tenant, 0 if it is empty.
    """

    step_time_s: float
    tenant_ratio: float
    gpu: int


def share_gangs(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    started: Sequence[Allocation],
    waiting: Iterable[JobState],
    max_slowdown: float = 2.0,
) -> list[Allocation]:
    """Start gangs that `started` leaves waiting, each beside one single-GPU job per GPU, and on empty GPUs.

    A gang goes on one node. It goes over several nodes of a type, of one switch if possible, only if no node
    is large enough. It runs at the pace of its slowest member; its work and what its neighbours retain of
    theirs must add up to more than the GPUs would do in turn.

    Args:
        snapshot: the cluster.
        belief: predictions.
        started: the decision so far; its GPUs, and the GPUs of jobs that it moves, are left alone.
        waiting: in order; jobs other than gangs are skipped.
        max_slowdown: limit for the gang and every neighbour.
    """
    taken = {gpu for a in started for gpu in (*a.gpus, *a.job.gpus)}
    done = {a.job.number for a in started}
    more: list[Allocation] = []
    for job in waiting:
        if job.number in done or job.job.gpus == 1 or job.exclusive:
            continue
        gpus = _best_gpus(snapshot, belief, job, taken, max_slowdown)
        if gpus:
            taken.update(gpus)
            more.append(Allocation(job, gpus))
    return more


def _best_gpus(
    snapshot: SchedulingSnapshot, belief: SetCache, job: JobState, taken: set[int], max_slowdown: float
) -> tuple[int, ...]:
    """The fastest worthwhile placement of the gang; empty if there is none."""
    count, best_s, best = job.job.gpus, np.inf, tuple[int, ...]()
    for kind, alone_s in enumerate(solo_step_s(snapshot, belief, job.job.workload)):
        if not np.isfinite(alone_s):
            continue
        nodes = snapshot.nodes_of_type[kind].tolist()
        places = {n: _places(snapshot, belief, job, n, alone_s, taken, max_slowdown) for n in nodes}
        if count <= int(snapshot.node_size[nodes].max()):
            groups = [places[n][:count] for n in nodes]
        else:
            order = by_switch(snapshot, nodes, [len(places[n]) for n in nodes], count)
            groups = [[p for n in order for p in places[n]][:count]]
        for group in groups:
            if len(group) < count:
                continue
            slowest_s = max(p.step_time_s for p in group)
            work = count * alone_s / slowest_s + sum(p.tenant_ratio for p in group)
            if work > count and slowest_s < best_s:
                best_s, best = slowest_s, tuple(p.gpu for p in group)
    return best


def _places(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    job: JobState,
    node: int,
    alone_s: float,
    taken: set[int],
    max_slowdown: float,
) -> list[_Place]:
    """GPUs of a node available to a member, fastest first."""
    own, places = belief.workload_id(job.job.workload), []
    for gpu in snapshot.node_gpus[node]:
        tenants = snapshot.tenants[gpu]
        if gpu in taken or len(tenants) > 1:
            continue
        if not tenants:
            places.append(_Place(alone_s, 0.0, gpu))
            continue
        (tenant,) = tenants
        if len(tenant.gpus) > 1 or tenant.exclusive:
            continue
        device = belief.device_id(snapshot.devices[gpu], snapshot.sharing[gpu])
        other = belief.workload_id(current_workload(tenant))
        (row,), (columns,) = belief.pairs(device, np.array([[own, other]]))
        slowdown = belief.slowdown[row, columns].tolist()
        step_s, fits = float(belief.step_time_s[row, columns[0]]), bool(belief.fits[row])
        if fits and max(slowdown) <= max_slowdown:
            places.append(_Place(step_s, min(1.0 / slowdown[1], 1.0), gpu))
    return sorted(places, key=lambda p: (p.step_time_s, -p.tenant_ratio, p.gpu))
