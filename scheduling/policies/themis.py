"""Themis: finish-time fairness.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020: rho is the predicted completion time
in the shared cluster over that on its own GPUs; GPUs go to the jobs that are worst off. The paper's partial auctions
among those jobs are replaced by the order of rho itself.
"""

from __future__ import annotations

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import admit_by_priority, remaining_s, solo_step_s


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """The jobs with the largest rho run."""
    if not snapshot.waiting:
        return []

    def rho(job: JobState) -> float:
        ideal = job.job.iterations * min(solo_step_s(snapshot, belief, job.job.workload))
        return (snapshot.now_s - job.job.submit_s + remaining_s(snapshot, belief, job)) / ideal

    return admit_by_priority(snapshot, belief, sorted(snapshot.active(), key=lambda j: (-rho(j), j.number)))


POLICY = Policy("themis", decide, round_s=60.0)
