"""Tiresias: two-dimensional least attained service, in discretised queues.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, sections 3.2 and 3.3: a
job's priority falls as the GPU-seconds it has received exceed thresholds; within a queue, the job submitted
first goes first; no length is needed. A job that has waited `PROMOTION` times as long as it has run returns
to the first queue (the paper's PROMOTEKNOB), and its service is counted from there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.admission import admit_by_priority
from scheduling.placement.queueing import KeptOrder

THRESHOLDS_GPU_S = (3_600.0, 36_000.0)  # one and ten GPU-hours
PROMOTION = 8.0  # ours: the paper leaves it to the operator
_ROUNDING_S = 1e-3  # a promotion's time is computed in another order than the seconds waited


@dataclass(slots=True, eq=False)
class _Queues:
    """What is known of the jobs between decisions.

    Attributes:
        forgiven_gpu_s: GPU-seconds up to a job's last promotion, which no longer count.
        promotions: heap of (when a waiting job may be promoted, its number).
        order: the waiting jobs by queue.
    """

    forgiven_gpu_s: dict[int, float] = field(default_factory=dict)
    promotions: list[tuple[float, int]] = field(default_factory=list)
    order: KeptOrder = field(default_factory=KeptOrder)

    def waiting(self, snapshot: SchedulingSnapshot) -> Iterator[JobState]:
        """Waiting jobs in order; those that have waited long enough are promoted."""
        due = []
        while self.promotions and self.promotions[0][0] <= snapshot.now_s + _ROUNDING_S:
            due.append(heappop(self.promotions)[1])
        queue = snapshot.waiting
        changed = [queue[number] for number in due if number in queue]
        return self.order.jobs(snapshot, lambda job: (self._number_waiting(snapshot, job),), changed)

    def _number_waiting(self, snapshot: SchedulingSnapshot, job: JobState) -> int:
        since = self._since_gpu_s(snapshot, job)
        if since >= THRESHOLDS_GPU_S[0]:
            patience_s = PROMOTION * since / job.job.gpus
            if snapshot.now_s - job.waiting_since_s < patience_s:
                heappush(self.promotions, (job.waiting_since_s + patience_s, job.number))
            else:
                self.forgiven_gpu_s[job.number] = snapshot.attained_gpu_s(job)
        return self.number(snapshot, job)

    def number(self, snapshot: SchedulingSnapshot, job: JobState) -> int:
        """Of the queue that `job` is in; the first is 0."""
        return bisect_right(THRESHOLDS_GPU_S, self._since_gpu_s(snapshot, job))

    def _since_gpu_s(self, snapshot: SchedulingSnapshot, job: JobState) -> float:
        return snapshot.attained_gpu_s(job) - self.forgiven_gpu_s.get(job.number, 0.0)


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Run the jobs of the first queues."""
    if not snapshot.waiting:
        return []
    queues = snapshot.derived("tiresias", _Queues)

    def place(job: JobState) -> tuple[int, int]:
        return queues.number(snapshot, job), job.number

    running = sorted(snapshot.running.values(), key=place)
    return admit_by_priority(snapshot, belief, merge(queues.waiting(snapshot), running, key=place))


POLICY = Policy("tiresias", decide, round_s=60.0)
