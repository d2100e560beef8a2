"""Shared configurations for Sia's program: two single-GPU jobs on one GPU, valued by the predictor.

This goes beyond the published system. The utility of a shared configuration is that of its two members, each
with its goodput on one GPU of the type divided by its predicted slowdown; it takes one GPU. The row's
smallest goodput includes shared configurations, so that the normalisation remains the paper's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from predictor.types import Floats
from scheduling.core.job import JobState
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.sia.agent import Agent
from scheduling.sia.configurations import Configuration
from scheduling.sia.ilp import solve_columns
from scheduling.sia.objective import SiaConfig, utilities

_PARTNERS = 8  # most pairs per job and type that are offered to the solver


class SharingPair(NamedTuple):
    """Two rows that may share a GPU of type number `kind`, and their goodput there."""

    first: int
    second: int
    kind: int
    first_goodput: float
    second_goodput: float


class Chosen(NamedTuple):
    """Configurations by job number, and (leader, follower) of jobs that share the leader's GPU."""

    configurations: dict[int, tuple[JobState, Configuration]]
    followers: list[tuple[JobState, JobState]]


def choose_with_pairs(
    jobs: list[JobState],
    table: list[Configuration],
    goodput: Floats,
    least: Floats,
    factor: Floats,
    current: Ints,
    forced: dict[int, int],
    pairs: list[SharingPair],
    capacity: Ints,
    config: SiaConfig,
) -> Chosen:
    """Whole and shared configurations of all jobs together; arguments as for `utilities` and `solve`."""
    gpus, kinds = np.array([c.gpus for c in table]), np.array([c.kind for c in table])
    # The smallest shared goodput of each row, for the normalisation only.
    shared = np.full((len(jobs), 1), np.nan)
    for pair in pairs:
        shared[pair.first] = np.fmin(shared[pair.first], pair.first_goodput)
        shared[pair.second] = np.fmin(shared[pair.second], pair.second_goodput)
    everything = np.hstack([goodput, shared])
    worth = utilities(everything, least, factor, current, config)[:, :-1]
    # Two jobs that share a GPU and must both stay have no other configuration.
    bound = {r for p in pairs if p.first in forced and p.second in forced for r in (p.first, p.second)}
    singles = [
        (int(row), int(column))
        for row, column in zip(*np.nonzero(worth > 0), strict=True)
        if row not in bound and (row not in forced or forced[row] == column)
    ]
    columns: list[tuple[float, tuple[int, ...], int, int]] = [
        (float(worth[r, c]) + (1e3 if r in forced else 0.0), (r,), int(kinds[c]), int(gpus[c]))
        for r, c in singles
    ]
    smallest = np.where(everything > 0, everything, np.inf).min(axis=1)
    for pair in pairs:
        together = bool(jobs[pair.first].gpus) and jobs[pair.first].gpus == jobs[pair.second].gpus
        value = 0.0
        for row, good in ((pair.first, pair.first_goodput), (pair.second, pair.second_goodput)):
            moved = jobs[row].gpus and not together
            normal = min(good / smallest[row] * least[row], config.clip) * (factor[row] if moved else 1.0)
            power = normal**config.p
            value += power + config.lambda_n if config.p > 0 else config.lambda_n - power
            value += config.lambda_a if together else 0.0
        value += 1e3 * ((pair.first in forced) + (pair.second in forced))
        columns.append((value, (pair.first, pair.second), pair.kind, 1))
    chosen = Chosen({}, [])
    for index in solve_columns(columns, len(jobs), capacity, config.gap):
        if index < len(singles):
            row, column = singles[index]
            chosen.configurations[jobs[row].number] = (jobs[row], table[column])
        else:
            pair = pairs[index - len(singles)]
            # A job that must stay leads, because its partner may be moved, and the follower with it.
            lead, other = sorted(
                (pair.first, pair.second), key=lambda r: (r not in forced, not jobs[r].gpus, jobs[r].number)
            )
            chosen.configurations[jobs[lead].number] = (jobs[lead], Configuration(1, 1, pair.kind))
            chosen.followers.append((jobs[lead], jobs[other]))
    return chosen


def sharing_pairs(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    jobs: list[JobState],
    table: list[Configuration],
    goodput: Floats,
    forced: set[int],
    max_slowdown: float,
) -> list[SharingPair]:
    """Pairs that may share a GPU: the best few partners of each job; of a job that must stay, its present one."""
    single = {c.kind: k for k, c in enumerate(table) if c.gpus == 1}
    rows = [
        r
        for r, j in enumerate(jobs)
        if j.job.gpus == 1 and not j.exclusive and not isinstance(j.agent, Agent) and r not in forced
    ]
    pairs = _staying(snapshot, belief, jobs, single, goodput, forced)
    if len(rows) < 2:
        return pairs
    ids = np.array([belief.workload_id(current_workload(jobs[r])) for r in rows])
    first, second = np.triu_indices(len(rows), 1)
    for kind, column in single.items():
        device = belief.device_id(snapshot.types[kind], snapshot.type_sharing[kind])
        with belief.lock:
            at, columns = belief.pairs(device, np.column_stack([ids[first], ids[second]]))
            slow, fits = np.take_along_axis(belief.slowdown[at], columns, axis=1), belief.fits[at]
        gain = (1.0 / slow).sum(axis=1)
        good = np.flatnonzero(fits & (slow.max(axis=1) <= max_slowdown) & (gain > 1.0))
        taken = np.zeros(len(rows), int)
        for k in good[np.argsort(-gain[good], kind="stable")].tolist():
            a, b = int(first[k]), int(second[k])
            if (
                min(taken[a], taken[b]) < _PARTNERS
                and goodput[rows[a], column] > 0
                and goodput[rows[b], column] > 0
            ):
                taken[[a, b]] += 1
                alone = goodput[rows[a], column], goodput[rows[b], column]
                pairs.append(
                    SharingPair(
                        rows[a],
                        rows[b],
                        kind,
                        float(alone[0] / slow[k, 0]),
                        float(alone[1] / slow[k, 1]),
                    )
                )
    return pairs


def _staying(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    jobs: list[JobState],
    single: dict[int, int],
    goodput: Floats,
    forced: set[int],
) -> list[SharingPair]:
    """Jobs that share a GPU of which at least one must stay, as they are."""
    row_of = {j.number: r for r, j in enumerate(jobs)}
    pairs = []
    for first in sorted(forced):
        if len(jobs[first].gpus) != 1:
            continue
        (gpu,) = jobs[first].gpus
        for mate in snapshot.tenants[gpu]:
            second = row_of.get(mate.number, first)
            if second == first or (second in forced and second < first):
                continue
            kind = int(snapshot.type_of[gpu])
            device = belief.device_id(snapshot.devices[gpu], snapshot.sharing[gpu])
            ids = np.array([[belief.workload_id(current_workload(jobs[r])) for r in (first, second)]])
            with belief.lock:
                at, columns = belief.pairs(device, ids)
                slow = belief.slowdown[at[0], columns[0]]
            alone = goodput[[first, second], single[kind]]
            if (alone > 0).all():
                together = alone / slow
                pairs.append(SharingPair(first, second, kind, float(together[0]), float(together[1])))
    return pairs
