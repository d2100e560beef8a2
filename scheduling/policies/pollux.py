"""Pollux: sizes and batches by goodput, on types taken as equal.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section 4: the
power mean (p = -1) of the jobs' speedups is raised; a job that would restart is valued at its restart factor. The
paper's genetic search is replaced by marginal gains, which reach the same kind of allocation on a concave speedup.
"""

from __future__ import annotations

import heapq

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.policies.elastic_sizes import allocate_sizes, ladder, speeds
from scheduling.sia.agent import Agent
from scheduling.sia.objective import restart_factor


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Sizes that minimise the sum of 1 / speedup, one step after the other."""
    room = len(snapshot)
    sizes: dict[int, int] = {}
    rows: dict[int, tuple[list[int], list[float]]] = {}
    heap: list[tuple[float, float, int, int]] = []
    for job in snapshot.active():
        rungs = ladder(job)
        pace = speeds(snapshot, belief, job, rungs)
        base = pace[0] if pace[0] > 0 else 1.0
        cost = job.agent.application.penalty_s if isinstance(job.agent, Agent) else 30.0
        factor = restart_factor(snapshot.now_s - job.job.submit_s, job.restarts, cost)
        speedup = [
            p / base * (1.0 if r == len(job.gpus) else factor) for p, r in zip(pace, rungs, strict=True)
        ]
        rows[job.number] = rungs, speedup
        heapq.heappush(heap, (-float("inf"), job.job.submit_s, job.number, 0))
    while heap and room > 0:
        _, when, number, rung = heapq.heappop(heap)
        rungs, speedup = rows[number]
        extra = rungs[rung] - sizes.get(number, 0)
        if extra > room:
            continue
        room -= extra
        sizes[number] = rungs[rung]
        if rung + 1 < len(rungs) and speedup[rung + 1] > speedup[rung] > 0:
            gain = (1 / speedup[rung] - 1 / speedup[rung + 1]) / (rungs[rung + 1] - rungs[rung])
            heapq.heappush(heap, (-gain, when, number, rung + 1))
    return allocate_sizes(snapshot, belief, sizes)


POLICY = Policy("pollux", decide, round_s=60.0, preemptive=True)
