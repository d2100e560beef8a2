"""Tiresias: two-dimensional least attained service, in discretised queues.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, sections 3.2 and 3.3: a
job's priority falls as the GPU-seconds it has received exceed thresholds; within a queue, the job submitted
first goes first; no length is needed. A job that has waited `PROMOTION` times as long as it has run returns
to the first queue (the paper's PROMOTEKNOB), and its service is counted from there.
"""

from __future__ import annotations

from bisect import bisect_right

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import admit_by_priority

THRESHOLDS_GPU_S = (3_600.0, 36_000.0)  # one and ten GPU-hours
PROMOTION = 8.0  # ours: the paper leaves it to the operator


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Run the jobs of the first queues."""
    if not snapshot.waiting:
        return []
    forgiven: dict[int, float] = snapshot.derived("tiresias", dict)

    def queue(job: JobState) -> int:
        attained = snapshot.attained_s(job)
        since = attained - forgiven.get(job.number, 0.0)
        waited_s = 0.0 if job.gpus else snapshot.now_s - job.waiting_since_s
        if since >= THRESHOLDS_GPU_S[0] and waited_s >= PROMOTION * since / job.job.gpus:
            forgiven[job.number], since = attained, 0.0
        return bisect_right(THRESHOLDS_GPU_S, since)

    return admit_by_priority(snapshot, belief, sorted(snapshot.active(), key=lambda j: (queue(j), j.number)))


POLICY = Policy("tiresias", decide, round_s=60.0)
