"""Decides whether to stop a long-running job for short waiting ones, restart included."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import solo_step_s
from scheduling.placement.packing import Tenancy
from scheduling.placement.pairing import every_pair
from scheduling.placement.ranking import PlacementConfig

# The stopped job must need this many times as long as the one that takes its place, plus four restarts:
# lengths are estimates, and a stopped job waits again. Chosen on synthetic pairs (`benchmarks.queue_order`).
_RATIO = 2.0
_RESTARTS = 4.0
# Most jobs of the queue that may replace others in one decision.
_HEADS = 4


def preempt(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    jobs: Sequence[JobState],
    config: PlacementConfig,
    restart_s: float,
    used: Collection[int],
    sharing: Mapping[int, tuple[int, float]],
    longest_s: float = np.inf,
) -> list[Allocation]:
    """Stop the longest jobs for the first of `jobs`, where those are much shorter.

    Args:
        snapshot: the cluster.
        tenancy: its tenants.
        jobs: jobs that wait or are to share a GPU, shortest first; one GPU each.
        config: configuration of the ranking.
        restart_s: cost of stopping a job.
        used: GPUs assigned in this decision.
        sharing: by job number, GPU and finish plus delays of the jobs that are to share.
        longest_s: jobs that need more than this alone are not stopped.
    """
    belief, decided, touched = tenancy.cache, list[Allocation](), set(used)
    remaining = tenancy.alone_s(snapshot)
    stays = ~tenancy.stoppable | (tenancy.resume_s > snapshot.now_s) | (remaining > longest_s)
    remaining[stays] = 0.0
    for job in jobs[:_HEADS]:
        steps = np.array(solo_step_s(snapshot, belief, job.job.workload))
        alone = snapshot.left(job) * steps[snapshot.type_of]
        victims = remaining > (_RATIO * alone + _RESTARTS * restart_s)[:, None]
        joins, cost_s = sharing.get(job.number, (-1, np.inf))
        victims[[gpu for gpu in touched if gpu != joins]] = False
        gpus, columns = np.nonzero(victims)
        if not gpus.size:
            break
        state = tenancy.candidates(snapshot, gpus)
        state.present[np.arange(len(gpus)), columns] = False
        number, left = np.array([belief.workload_id(job.job.workload)]), np.array([snapshot.left(job)])
        beside = every_pair(belief, state, number, left, replace(config, objective="jct")).score[0]
        gain = np.where(np.isfinite(beside), remaining[gpus, columns] - beside, -np.inf)
        best = int(gain.argmax())
        # A stopped job resumes at the earliest when the short job is done.
        delayed = float(beside[best] + alone[gpus[best]]) + restart_s
        if gain[best] <= 0 or delayed >= cost_s:
            continue
        gpu = int(gpus[best])
        touched.add(gpu)
        victim = snapshot.tenants[gpu][int(columns[best])]
        decided += [Allocation(victim), Allocation(job, (gpu,))]
    return decided
