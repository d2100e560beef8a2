"""Gavel's allocation policies without a linear program: the isolated split, FIFO, AlloX."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np
from scipy.optimize import linear_sum_assignment

from predictor.types import Floats
from scheduling.gavel.problem import AllocationProblem


def isolated(problem: AllocationProblem) -> Floats:
    """[J, W] shares of 1/m of each type, N_w / (m s_i), for every job.

    Scaled down if they exceed all of its time.
    """
    share = problem.counts[None, :] / (problem.jobs * problem.gpus[:, None])
    return np.asarray(share / np.maximum(share.sum(axis=1, keepdims=True), 1.0), float)


def isolated_speed(problem: AllocationProblem) -> Floats:
    """[J] steps per second of each job under the isolated split."""
    return np.asarray((isolated(problem) * problem.alone).sum(axis=1), float)


def fifo(
    problem: AllocationProblem,
    pack_above: float | None = None,
    generator: np.random.Generator | None = None,
    held: Mapping[int, int] | None = None,
) -> Floats:
    """[R, W] jobs by number, each on the free type where it is fastest.

    The first that fits nowhere blocks the rest.

    Args:
        problem: the problem.
        pack_above: remaining jobs join a running one of equal size on the type where the sum of speeds over
            solo speeds is largest and above this; None: never.
        generator: draws types at random (the heterogeneity-blind baseline) instead of by speed.
        held: job -> type drawn earlier, which it keeps.
    """
    x = np.zeros((len(problem.rows), len(problem.counts)))
    free = problem.counts.copy()
    running: dict[int, int] = {}
    waiting: list[int] = []
    for job in range(problem.jobs):
        fits = np.flatnonzero((free >= problem.gpus[job]) & (problem.alone[job] > 0))
        if waiting or not fits.size:
            waiting.append(job)
            continue
        kind = int(fits[problem.alone[job, fits].argmax()])
        if generator is not None:
            kind = int(generator.choice(fits))
            if held and held.get(job, -1) in fits:
                kind = held[job]
        free[kind] -= problem.gpus[job]
        running[job] = kind
        x[job, kind] = 1.0
    if pack_above is not None:
        _pack(problem, x, running, waiting, pack_above)
    return x


def _pack(
    problem: AllocationProblem, x: Floats, running: dict[int, int], waiting: list[int], above: float
) -> None:
    index = {frozenset(row): r for r, row in enumerate(problem.rows) if len(row) == 2}
    for job in waiting:
        best, best_row, best_mate = above, -1, -1
        for mate, kind in running.items():
            row = index.get(frozenset((job, mate)))
            if row is None or problem.gpus[job] != problem.gpus[mate]:
                continue
            solo = problem.alone[list(problem.rows[row]), kind]
            total = float((problem.speed[row, kind] / solo).sum()) if (solo > 0).all() else 0.0
            if total > best:
                best, best_row, best_mate = total, row, mate
        if best_row < 0:
            break
        kind = running.pop(best_mate)
        x[best_mate, kind], x[best_row, kind] = 0.0, 1.0


def allox(
    problem: AllocationProblem, elapsed_s: Floats, left: Floats, held: Mapping[int, int] | None = None
) -> Floats:
    """[J, W] the lowest sum of completion times, each job on one machine.

    It is an assignment of jobs to (GPU, position from its end). Le et al., "AlloX: Compute Allocation in
    Hybrid Clusters", EuroSys 2020, whose jobs take one machine each. Gangs are our extension: each is matched as a
    job of as many GPU-seconds on one GPU and starts, after jobs of fewer GPU-seconds, on free GPUs of that type; if
    too few are free, they are kept for it.

    Args:
        problem: the problem.
        elapsed_s: [J] since the job arrived.
        left: [J] steps left.
        held: job -> type that it runs on and keeps.
    """
    held = held or {}
    x = np.zeros((problem.jobs, len(problem.counts)))
    free = problem.counts.astype(int).copy()
    for job, kind in held.items():
        x[job, kind] = 1.0
        free[kind] -= problem.gpus[job]
    jobs = [j for j in range(problem.jobs) if j not in held]
    # The GPUs of a type are alike, so in an optimum none has more than an equal share of the jobs, rounded up.
    machines = [kind for kind, count in enumerate(free) for _ in range(min(count, len(jobs)))]
    if not machines:
        return x
    places = [(m, k + 1) for m, kind in enumerate(machines) for k in range(ceil(len(jobs) / free[kind]))]
    machine, position = np.array(places).T
    with np.errstate(divide="ignore"):
        need = problem.gpus[jobs, None] * left[jobs, None] / problem.alone[np.ix_(jobs, machines)]
    cost = need[:, machine] * position + elapsed_s[jobs][:, None]
    runs = np.isfinite(cost)
    cost[~runs] = 1.0 + cost[runs].sum()  # no saving justifies a position where a job cannot run
    first: dict[int, tuple[int, int]] = {}
    # (row, machine) that may start: gangs, and the first job of each machine
    able: list[tuple[int, int]] = []
    for row, column in zip(*linear_sum_assignment(cost), strict=True):
        if not runs[row, column]:
            continue
        on, place = places[column]
        if problem.gpus[jobs[row]] > 1:
            able.append((int(row), on))
        elif on not in first or place > first[on][0]:
            first[on] = place, int(row)
    able += [(row, on) for on, (_, row) in first.items()]
    kept: set[int] = set()  # types of which a gang waits for more GPUs
    for entry in sorted(able, key=lambda entry: (need[entry], entry)):
        job, kind = jobs[entry[0]], machines[entry[1]]
        if kind in kept:
            continue
        if problem.gpus[job] > free[kind]:
            kept.add(kind)
            continue
        free[kind] -= problem.gpus[job]
        x[job, kind] = 1.0
    return x
