"""Themis: finish-time fairness, with leases.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020: rho is the predicted
completion time in the shared cluster over that on a 1/N share of the GPUs that jobs can use, where N is the number
of jobs present.
GPUs are leased: a job keeps its own until its lease ends, and those whose leases have ended go to the jobs
that are worst off. The paper's partial auctions among those jobs are replaced by the order of rho itself. While a
job waits that is worse off, as a gang for which too few GPUs are free, others run without a lease.
"""

from __future__ import annotations

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.admission import admit_by_priority
from scheduling.placement.gangs import remaining_s, solo_step_s, usable_gpus

ROUND_S = 60.0
LEASE_S = 1200.0  # 20 minutes, as in the paper's evaluation


def decide(snapshot: SchedulingSnapshot, belief: SetCache, lease_s: float = LEASE_S) -> list[Allocation]:
    """Jobs within a lease continue; of the others those with the largest rho run."""
    leased: dict[int, float] = snapshot.derived("themis", dict)
    for job in snapshot.running.values():
        end_s = leased.get(job.number)
        # An expired lease is renewed if no other job takes the GPUs.
        if end_s is None or (end_s <= snapshot.now_s and not snapshot.waiting):
            leased[job.number] = snapshot.now_s + lease_s
    if not snapshot.waiting:
        return []
    contending = len(snapshot.waiting) + len(snapshot.running)
    gpus = usable_gpus(snapshot, belief)

    def rho(job: JobState) -> float:
        alone_s = job.expected_length * min(solo_step_s(snapshot, belief, job.job.workload))
        ideal_s = alone_s * max(1.0, job.job.gpus * contending / gpus)
        return (snapshot.now_s - job.job.submit_s + remaining_s(snapshot, belief, job)) / ideal_s

    def rank(job: JobState) -> tuple[bool, float, int]:
        return not (job.gpus and leased[job.number] > snapshot.now_s), -rho(job), job.number

    decisions = admit_by_priority(snapshot, belief, sorted(snapshot.active(), key=rank))
    changed = {d.job.number: d for d in decisions}
    worst = max((rho(j) for j in snapshot.waiting.values() if j.number not in changed), default=0.0)
    for job in snapshot.active():
        decision = changed.get(job.number)
        if not (decision.gpus if decision else job.gpus):
            leased.pop(job.number, None)
        elif decision or leased[job.number] <= snapshot.now_s:
            leased[job.number] = snapshot.now_s + (lease_s if rho(job) >= worst else 0.0)
    return decisions


POLICY = Policy("themis", decide, round_s=ROUND_S, preemptive=True)
