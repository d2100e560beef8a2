"""Pollux: sizes and batches by goodput, with GPU types treated as equal.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section
4: the power mean (p = -1) of the jobs' speedups is maximised; a job that would restart is valued at its
restart factor. Speedups are relative to the job's smallest size; the paper's are relative to an equal share of
the cluster. The paper's genetic search is replaced by dynamic programming, which finds the best sizes; only
sizes off the ladder are lost.
"""

from __future__ import annotations

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import usable_gpus
from scheduling.policies.elastic_sizes import allocate_sizes, best_sizes, ladder, speeds
from scheduling.sia.agent import Agent
from scheduling.sia.objective import restart_factor

_NOTHING = 1e6


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Sizes that minimise the sum of 1 / speedup over the first submitted jobs for which there are GPUs."""
    room = gpus = usable_gpus(snapshot, belief, up=True)
    numbers: list[int] = []
    rows: list[tuple[list[int], list[float]]] = []
    for job in sorted(snapshot.active(), key=lambda j: (j.job.submit_s, j.number)):
        rungs = ladder(snapshot, belief, job)
        if rungs[0] > room:
            continue
        room -= rungs[0]
        pace = speeds(snapshot, belief, job, rungs)
        base = pace[0] if pace[0] > 0 else 1.0
        cost = job.agent.application.penalty_s if isinstance(job.agent, Agent) else 30.0
        factor = restart_factor(snapshot.now_s - job.job.submit_s, job.restarts, cost)
        speedup = [
            p / base * (1.0 if r == len(job.gpus) else factor) for p, r in zip(pace, rungs, strict=True)
        ]
        numbers.append(job.number)
        # A size without progress is as good as none; the first is the one with which the job is admitted.
        rows.append((rungs, [1 / s if s > 0 else _NOTHING for s in speedup]))
    sizes = best_sizes(rows, gpus)
    return allocate_sizes(snapshot, belief, dict(zip(numbers, sizes, strict=True)))


POLICY = Policy("pollux", decide, round_s=60.0, preemptive=True)
