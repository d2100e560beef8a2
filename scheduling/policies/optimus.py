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
from scheduling.placement.gangs import usable_gpus
from scheduling.policies.elastic_sizes import allocate_sizes, ladder, speeds

ROUND_S = 600.0
_LEAST_GAIN = 0.10  # for which `optimus-shortest` takes GPUs from a job, as IceFrog


def decide(snapshot: SchedulingSnapshot, belief: SetCache, shortest: bool = False) -> list[Allocation]:
    """Sizes by marginal gain: seconds saved per GPU added.

    Args:
        shortest: jobs get their first GPUs by the least GPU-seconds left, not by submission, and lose them only for
            a gain of 10 %; ours.
    """
    room = usable_gpus(snapshot, belief, up=True)
    sizes: dict[int, int] = {}
    heap: list[tuple[bool, float, int, int]] = []
    choices = {}
    for job in snapshot.active():
        rungs = ladder(snapshot, belief, job)
        # In short rounds, two nearly equal jobs would take GPUs from each other in turn, so jobs are compared on one
        # type, and who holds GPUs keeps them for a small gain.
        pace = speeds(snapshot, belief, job, rungs, held=not shortest)
        left = snapshot.left(job)
        needed = [left / p if p > 0 else float("inf") for p in pace]
        # Every job gets its first GPUs before any gets more; by number means by submission.
        work_s = needed[0] * rungs[0] if shortest else 0.0
        if shortest and job.gpus:
            work_s /= 1.0 + _LEAST_GAIN
            held = len(job.gpus)
            needed = [s if r == held else s * (1.0 + _LEAST_GAIN) for r, s in zip(rungs, needed, strict=True)]
        choices[job.number] = rungs, needed
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
