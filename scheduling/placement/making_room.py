"""Makes room for a gang on a node by moving smaller jobs elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduling.core.job import JobState
from scheduling.core.set_cache import SetCache
from scheduling.placement.gangs import Pool, exclusive_gpus, solo_step_s

_NODES_TRIED = 4


def gpus_of_size(pool: Pool, belief: SetCache, job: JobState, size: int) -> tuple[int, ...]:
    """`size` whole GPUs, the ones that `job` holds if still available; empty if there is no room."""
    if size == len(job.gpus) and pool.taken.isdisjoint(job.gpus):
        pool.keep(job.gpus)
        return job.gpus
    return exclusive_gpus(pool, belief, job, size)


def by_moving(
    pool: Pool, belief: SetCache, job: JobState, size: int, stay: Sequence[JobState]
) -> tuple[Pool, tuple[int, ...], dict[int, tuple[int, ...]]]:
    """GPUs of one node for `job` if smaller jobs there move to empty GPUs elsewhere.

    Args:
        pool: the empty GPUs.
        belief: predictions.
        job: the gang.
        size: its GPUs.
        stay: running jobs that may move, alone on their GPUs.

    Returns:
        the pool afterwards, the GPUs (none if there is no such node), and those of the jobs that move, by number.
    """
    snapshot = pool.snapshot
    steps = solo_step_s(snapshot, belief, job.job.workload)
    on_node: dict[int, list[JobState]] = {}
    for other in stay:
        nodes = {int(snapshot.node_of[g]) for g in other.gpus}
        if len(nodes) == 1 and len(other.gpus) < size and np.isfinite(steps[snapshot.type_of[other.gpus[0]]]):
            on_node.setdefault(nodes.pop(), []).append(other)
    need = {
        node: size - int(pool.free[node])
        for node, others in on_node.items()
        if pool.free[node] + sum(len(other.gpus) for other in others) >= size
    }
    for node in sorted(need, key=lambda n: (need[n], n))[:_NODES_TRIED]:
        trial, leaving = pool.copy(), list[JobState]()
        for other in sorted(on_node[node], key=lambda o: (-len(o.gpus), o.number)):
            if sum(len(o.gpus) for o in leaving) < need[node]:
                leaving.append(other)
                trial.release(other.gpus)
        gpus = trial.take(size, int(snapshot.node_type[node]))
        moved = {o.number: gpus_of_size(trial, belief, o, len(o.gpus)) for o in leaving}
        if gpus and all(moved.values()):
            return trial, gpus, moved
    return pool, (), {}
