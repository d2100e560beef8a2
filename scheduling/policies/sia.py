"""Sia: chooses the configurations of all jobs jointly by goodput, in rounds of 60 s.

`sia-packed` also shares GPUs. Jayaram Subramanya et al., SOSP 2023. Jobs with an agent are valued by their
fitted models; others by the predictor's step time and `gpus ** 0.9`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.sia.configurations import place_configurations, place_meanwhile
from scheduling.sia.ilp import solve
from scheduling.sia.objective import SiaConfig
from scheduling.sia.pairs import Chosen, choose_with_pairs, sharing_pairs
from scheduling.sia.rows import JobRows, configuration_table

ROUND_S = 60.0


def decide(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    config: SiaConfig = SiaConfig(),
    shared_max_slowdown: float | None = None,
) -> list[Allocation]:
    """Give every active job its configuration of this round.

    Args:
        snapshot: the cluster.
        belief: predictions.
        config: configuration.
        shared_max_slowdown: single-GPU jobs may share a GPU if no member is predicted to be slower than this;
            None: GPUs are not shared, as published.
    """
    jobs = sorted(snapshot.active(), key=lambda j: j.number)
    if not jobs:
        return []
    table = configuration_table(snapshot, config, jobs)
    rows = JobRows.of(snapshot, belief, jobs, table)
    capacity = snapshot.up_of_type
    if shared_max_slowdown is None:
        gpus, kinds = np.array([c.gpus for c in table]), np.array([c.kind for c in table])
        worth = rows.worth(rows.goodput, config)
        columns = solve(worth, gpus, kinds, capacity, rows.forced, config.gap)
        picked = {j.number: (j, table[c]) for j, c in zip(jobs, columns.tolist(), strict=True) if c >= 0}
        chosen = Chosen(picked, [])
    else:
        pairs = sharing_pairs(snapshot, belief, rows, shared_max_slowdown)
        chosen = choose_with_pairs(rows, pairs, capacity, config)
    placed = place_configurations(snapshot, chosen.configurations)
    scattered = len(placed) < len(chosen.configurations)
    for lead, other in chosen.followers:
        if lead.number in placed:
            placed[other.number] = placed[lead.number]
    if scattered:
        placed |= _meanwhile(snapshot, rows, placed)
    return [
        Allocation(j, placed.get(j.number, ())) for j in jobs if set(placed.get(j.number, ())) != set(j.gpus)
    ]


def _meanwhile(
    snapshot: SchedulingSnapshot, rows: JobRows, placed: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """GPUs of the jobs that are not `placed`, as long as no node has room for a configuration that was chosen.

    The public simulator leaves these GPUs idle, so jobs with an agent do not get them.
    """
    others = []
    for job, goodput in zip(rows.jobs, rows.goodput, strict=True):
        if job.number not in placed and job.agent is None:
            possible = np.flatnonzero(goodput > 0).tolist()
            # The job grows when the program chooses it.
            possible.sort(key=lambda c: (rows.table[c].gpus, -goodput[c]))
            others.append((job, [rows.table[c] for c in possible]))
    return place_meanwhile(snapshot, others, {gpu for gpus in placed.values() for gpu in gpus})


def sia(config: SiaConfig) -> Policy:
    """The policy with custom settings."""
    return Policy("sia", partial(decide, config=config), round_s=ROUND_S, preemptive=True)


# The public simulator rounds the value of a configuration to two decimals, and charges nothing for a change.
_AS_PUBLISHED = SiaConfig(lambda_a=0.0, decimals=2)
POLICY = replace(sia(SiaConfig()), as_published=sia(_AS_PUBLISHED))
PACKED = Policy("sia-packed", partial(decide, shared_max_slowdown=2.0), round_s=ROUND_S, preemptive=True)
