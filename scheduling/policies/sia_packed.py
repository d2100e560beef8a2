"""Co-location-aware Sia: beside whole GPUs, two single-GPU jobs may share one, valued by the predictor.

A step beyond the published system. A shared configuration is worth what its two members are worth together, each with
its goodput on one GPU of the type divided by its predicted slowdown; it takes one GPU. The rows' smallest goodput
includes the shared ones, so that the normalisation stays the paper's.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from predictor.types import Floats
from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.policies.sia import configuration_table, job_rows
from scheduling.sia.agent import Agent
from scheduling.sia.configurations import Configuration, place_configurations
from scheduling.sia.ilp import solve_columns
from scheduling.sia.objective import SiaConfig, utilities

_PARTNERS = 8  # most pairs of a job that are offered to the solver, per type


def decide(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    config: SiaConfig | None = None,
    max_slowdown: float = 2.0,
) -> list[Allocation]:
    """Choose whole and shared configurations of all active jobs together."""
    config = config or SiaConfig()
    jobs = sorted(snapshot.active(), key=lambda j: j.number)
    if not jobs:
        return []
    table = configuration_table(snapshot, config, jobs)
    goodput, least, current, factor, forced = job_rows(snapshot, belief, jobs, table)
    pairs = _pairs(snapshot, belief, jobs, table, goodput, set(forced), max_slowdown)
    gpus, kinds = np.array([c.gpus for c in table]), np.array([c.kind for c in table])
    shared = np.full(
        (len(jobs), 1), np.nan
    )  # the smallest shared goodput of each row, for the normalisation only
    for first, second, _, a, b in pairs:
        shared[first] = np.fmin(shared[first], a)
        shared[second] = np.fmin(shared[second], b)
    worth = utilities(np.hstack([goodput, shared]), least, factor, current, config)[:, :-1]
    columns: list[tuple[float, tuple[int, ...], int, int]] = []
    for row, column in zip(*np.nonzero(worth > 0), strict=True):
        if row not in forced or forced[row] == column:
            bonus = 1e3 if row in forced else 0.0
            columns.append(
                (float(worth[row, column]) + bonus, (int(row),), int(kinds[column]), int(gpus[column]))
            )
    singles = len(columns)
    where = [
        (int(r), int(c))
        for r, c in zip(*np.nonzero(worth > 0), strict=True)
        if r not in forced or forced[r] == c
    ]
    everything = np.hstack([goodput, shared])
    smallest = np.nanmin(np.where(everything > 0, everything, np.nan), axis=1)
    for first, second, kind, a, b in pairs:
        together = _together(jobs[first], jobs[second])
        value = 0.0
        for row, good in ((first, a), (second, b)):
            moved = jobs[row].gpus and not together
            normal = min(good / smallest[row] * least[row], config.clip) * (factor[row] if moved else 1.0)
            value += (
                config.lambda_n - normal**config.p if config.p < 0 else normal**config.p + config.lambda_n
            )
            value += config.lambda_a if together else 0.0
        columns.append((value, (first, second), kind, 1))
    chosen = solve_columns(columns, len(jobs), snapshot.type_size, config.gap)
    picked: dict[int, tuple[JobState, Configuration]] = {}
    follows: list[tuple[JobState, JobState]] = []
    for index in chosen:
        members, kind = columns[index][1], columns[index][2]
        if index < singles:
            row, column = where[index]
            picked[jobs[row].number] = (jobs[row], table[column])
        else:
            lead, other = sorted((jobs[m] for m in members), key=lambda j: (not j.gpus, j.number))
            picked[lead.number] = (lead, Configuration(1, 1, kind))
            follows.append((lead, other))
    placed = place_configurations(snapshot, picked)
    for lead, other in follows:
        if lead.number in placed:
            placed[other.number] = placed[lead.number]
    return [
        Allocation(j, placed.get(j.number, ()), j.frozen_prefix)
        for j in jobs
        if set(placed.get(j.number, ())) != set(j.gpus)
    ]


def _pairs(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    jobs: list[JobState],
    table: list[Configuration],
    goodput: Floats,
    forced: set[int],
    max_slowdown: float,
) -> list[tuple[int, int, int, float, float]]:
    """(row, row, type, goodput, goodput) of pairs that may share a GPU; the best few partners of each."""
    one = {c.kind: k for k, c in enumerate(table) if c.gpus == 1}
    rows = [
        r
        for r, j in enumerate(jobs)
        if j.job.gpus == 1 and not j.exclusive and not isinstance(j.agent, Agent) and r not in forced
    ]
    if len(rows) < 2:
        return []
    ids = np.array([belief.workload_id(current_workload(jobs[r])) for r in rows])
    first, second = np.triu_indices(len(rows), 1)
    found: list[tuple[int, int, int, float, float]] = []
    for kind, column in one.items():
        gpu = int(np.argmax(snapshot.type_of == kind))
        device = belief.device_id(snapshot.devices[gpu], snapshot.sharing[gpu])
        members = np.column_stack([ids[first], ids[second]])
        swap = members[:, 0] > members[:, 1]
        members.sort(axis=1)
        with belief.lock:
            at = belief.rows(np.full(len(members), device), members, np.ones(members.shape, bool))
            slow, fits = belief.slowdown[at, :2], belief.fits[at]
        slow = np.where(swap[:, None], slow[:, ::-1], slow)
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
                found.append(
                    (rows[a], rows[b], kind, float(alone[0] / slow[k, 0]), float(alone[1] / slow[k, 1]))
                )
    return found


def _together(a: JobState, b: JobState) -> bool:
    return bool(a.gpus) and a.gpus == b.gpus


POLICY = Policy("sia-packed", partial(decide, config=SiaConfig()), round_s=60.0, preemptive=True)
