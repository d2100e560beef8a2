"""Optimus: GPUs go one step at a time to the job whose predicted remaining time they shorten most.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys 2018,
section 4.1; without parameter servers, and with GPU types treated as equal. Jobs are admitted by submission;
`optimus-shortest` is ours.
"""

from __future__ import annotations

import heapq
from functools import partial

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.policies.elastic_sizes import allocate_sizes, ladder, speeds

ROUND_S = 600.0


def decide(snapshot: SchedulingSnapshot, belief: SetCache, shortest: bool = False) -> list[Allocation]:
    """Sizes by marginal gain: seconds saved per GPU added.

    Args:
        shortest: jobs get their first GPUs by the least GPU-seconds left, not by submission; ours.
    """
    room = snapshot.up
    sizes: dict[int, int] = {}
    heap: list[tuple[bool, float, int, int]] = []
    choices = {}
    for job in snapshot.active():
        rungs = ladder(snapshot, belief, job)
        pace = speeds(snapshot, belief, job, rungs)
        left = snapshot.left(job)
        choices[job.number] = rungs, [left / p if p > 0 else float("inf") for p in pace]
        # Every job gets its first GPUs before any gets more; by number means by submission. Work is compared on
        # one type, or a job would lose a slow GPU to an equal one that waits, and take it back in the next round.
        work_s = 0.0
        if shortest:
            (alone,) = speeds(snapshot, belief, job, rungs[:1], held=False)
            work_s = left / alone * rungs[0] if alone > 0 else float("inf")
        heapq.heappush(heap, (False, work_s, job.number, 0))
    while heap and room > 0:
        _, _, number, rung = heapq.heappop(heap)
        rungs, needed = choices[number]
        extra = rungs[rung] - sizes.get(number, 0)
        if extra > room:
            continue
        room -= extra
        sizes[number] = rungs[rung]
        if rung + 1 < len(rungs):
            saved = (needed[rung] - needed[rung + 1]) / (rungs[rung + 1] - rungs[rung])
            if saved > 0:
                heapq.heappush(heap, (True, -saved, number, rung + 1))
    return allocate_sizes(snapshot, belief, sizes)


POLICY = Policy("optimus", decide, round_s=ROUND_S, preemptive=True)
SHORTEST = Policy("optimus-shortest", partial(decide, shortest=True), round_s=60.0, preemptive=True)
