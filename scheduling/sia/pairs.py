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
from scheduling.sia.objective import SiaConfig
from scheduling.sia.rows import JobRows

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


def choose_with_pairs(rows: JobRows, pairs: list[SharingPair], capacity: Ints, config: SiaConfig) -> Chosen:
    """Whole and shared configurations of all jobs together; `capacity` is that of `solve`."""
    jobs, table, forced = rows.jobs, rows.table, rows.forced
    # The smallest shared goodput of each row, for the normalisation only.
    shared = np.full((len(jobs), 1), np.nan)
    for pair in pairs:
        shared[pair.first] = np.fmin(shared[pair.first], pair.first_goodput)
        shared[pair.second] = np.fmin(shared[pair.second], pair.second_goodput)
    everything = np.hstack([rows.goodput, shared])
    worth = rows.worth(everything, config)[:, :-1]
    # Two jobs that share a GPU and must both stay have no other configuration.
    bound = {r for p in pairs if p.first in forced and p.second in forced for r in (p.first, p.second)}
    singles = [
        (int(row), int(column))
        for row, column in zip(*np.nonzero(worth > 0), strict=True)
        if row not in forced
    ]
    singles += [(row, column) for row, column in forced.items() if row not in bound]
    smallest = np.where(everything > 0, everything, np.inf).min(axis=1)
    columns: list[tuple[float, tuple[int, ...], int, int]] = [
        (_or_zero(worth[r, c]), (r,), table[c].kind, table[c].gpus) for r, c in singles
    ]
    for pair in pairs:
        value = _or_zero(_shared_worth(rows, pair, smallest, config))
        columns.append((value, (pair.first, pair.second), pair.kind, 1))
    chosen = Chosen({}, [])
    for index in solve_columns(columns, len(jobs), capacity, config.gap, forced):
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


def _or_zero(worth: float) -> float:
    """`worth`, or 0 for a job that must stay although it is predicted not to fit."""
    return float(worth) if np.isfinite(worth) else 0.0


def _shared_worth(rows: JobRows, pair: SharingPair, smallest: Floats, config: SiaConfig) -> float:
    """Utility of a shared configuration; `smallest` [J] is the goodput that those of a row are relative to."""
    jobs, value = rows.jobs, 0.0
    together = bool(jobs[pair.first].gpus) and jobs[pair.first].gpus == jobs[pair.second].gpus
    for row, good in ((pair.first, pair.first_goodput), (pair.second, pair.second_goodput)):
        moved = jobs[row].gpus and not together
        normal = min(good / smallest[row] * rows.least[row], config.clip)
        power = (normal * (rows.factor[row] if moved else 1.0)) ** config.p
        value += power + config.lambda_n if config.p > 0 else config.lambda_n - power
        value += config.lambda_a if together else 0.0
    return value


def sharing_pairs(
    snapshot: SchedulingSnapshot, belief: SetCache, rows: JobRows, max_slowdown: float
) -> list[SharingPair]:
    """Pairs that may share a GPU: the best few partners of each job; of a job that must stay, its present one."""
    jobs, goodput = rows.jobs, rows.goodput
    single = {c.kind: k for k, c in enumerate(rows.table) if c.gpus == 1}
    able = [
        r
        for r, j in enumerate(jobs)
        if j.job.gpus == 1 and not j.exclusive and not isinstance(j.agent, Agent) and r not in rows.forced
    ]
    pairs = _staying(snapshot, belief, rows, single)
    if len(able) < 2:
        return pairs
    ids = np.array([belief.workload_id(current_workload(jobs[r])) for r in able])
    first, second = np.triu_indices(len(able), 1)
    for kind, column in single.items():
        device = belief.device_id(snapshot.types[kind], snapshot.type_sharing[kind])
        at, columns = belief.pairs(device, np.column_stack([ids[first], ids[second]]))
        slow, fits = np.take_along_axis(belief.slowdown[at], columns, axis=1), belief.fits[at]
        gain = (1.0 / slow).sum(axis=1)
        good = np.flatnonzero(fits & (slow.max(axis=1) <= max_slowdown) & (gain > 1.0))
        taken = np.zeros(len(able), int)
        for k in good[np.argsort(-gain[good], kind="stable")].tolist():
            both = [int(first[k]), int(second[k])]
            one, other = (able[a] for a in both)
            alone = goodput[[one, other], column]
            if taken[both].min() < _PARTNERS and (alone > 0).all():
                taken[both] += 1
                pairs.append(SharingPair(one, other, kind, *(alone / slow[k]).tolist()))
    return pairs


def _staying(
    snapshot: SchedulingSnapshot, belief: SetCache, rows: JobRows, single: dict[int, int]
) -> list[SharingPair]:
    """Jobs that share a GPU of which at least one must stay, as they are; `single` is a column by GPU type."""
    jobs, forced = rows.jobs, rows.forced
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
            at, columns = belief.pairs(device, ids)
            slow = belief.slowdown[at[0], columns[0]]
            alone = rows.goodput[[first, second], single[kind]]
            if (alone > 0).all() or second in forced:
                pairs.append(SharingPair(first, second, kind, *(alone / slow).tolist()))
    return pairs
