"""Optimus: GPUs go one step at a time to the job whose predicted remaining time they shorten most.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys 2018, section 4.1;
without parameter servers, on types taken as equal.
"""

from __future__ import annotations

import heapq

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.policies.elastic_sizes import allocate_sizes, ladder, speeds


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Sizes by marginal gain: seconds saved per GPU added."""
    room = len(snapshot)
    sizes: dict[int, int] = {}
    heap: list[tuple[float, int, int]] = []
    choices = {}
    for job in snapshot.active():
        rungs = ladder(job)
        pace = speeds(snapshot, belief, job, rungs)
        left = snapshot.left(job)
        choices[job.number] = rungs, [left / p if p > 0 else float("inf") for p in pace]
        # The first step counts the whole run as saved; shorter jobs then come first, so that nobody starves them.
        first = choices[job.number][1][0]
        heapq.heappush(heap, (-1.0 / max(first * rungs[0], 1e-9) * 1e12, job.number, 0))
    while heap and room > 0:
        _, number, rung = heapq.heappop(heap)
        rungs, needed = choices[number]
        extra = rungs[rung] - sizes.get(number, 0)
        if extra > room:
            continue
        room -= extra
        sizes[number] = rungs[rung]
        if rung + 1 < len(rungs):
            saved = (needed[rung] - needed[rung + 1]) / (rungs[rung + 1] - rungs[rung])
            if saved > 0:
                heapq.heappush(heap, (-saved, number, rung + 1))
    return allocate_sizes(snapshot, belief, sizes)


POLICY = Policy("optimus", decide, round_s=600.0, preemptive=True)
