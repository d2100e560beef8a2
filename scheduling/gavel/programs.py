"""Gavel's linear programs: max-min fairness, maximum throughput, finish-time fairness.

Throughput may be by cost, and with deadlines. Every answer is [R, W]: the share of wall-clock time that each
row spends on each type. Among the optima of a max-min program, the one with the largest total progress is
chosen, because the minimum alone leaves GPUs idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack

from predictor.types import Floats
from profiling.errors import InfeasibleError
from scheduling.gavel.problem import AllocationProblem

_linprog: Any = linprog  # its stubs know no sparse matrices


def max_min(problem: AllocationProblem, weights: Floats | None = None, blind: bool = False) -> Floats:
    """Maximise min_i s_i * speed_i / (p_i * E_i): least attained service over types (section 4.1).

    Args:
        problem: the problem.
        weights: [J] p_i above 0; a job with a larger weight gets more. A factor common to all does not matter.
        blind: treat every speed as 1, even where it is 0 (the heterogeneity-blind baseline of the
            comparison).
    """
    if blind:
        held = (problem.speed > 0) | (np.arange(2) < np.array([[[len(r)]] for r in problem.rows]))
        problem = AllocationProblem(problem.rows, held.astype(float), problem.gpus, problem.counts)
    fair = problem.equal_share() * (1.0 if weights is None else _relative(weights))
    scale = np.divide(problem.gpus, fair, out=np.zeros(problem.jobs), where=fair > 0)
    # A job whose only type is down must not pull the minimum of all others to 0.
    return _floor(problem, csr_array(problem.progress() * scale[:, None]), (fair > 0).astype(float))[0]


def _relative(weights: Floats) -> Floats:
    """[J] weights over the smallest, to 12 digits: among several optima, the solver's choice depends on every bit."""
    return np.array([float(f"{ratio:.12g}") for ratio in weights / weights.min()])


def max_sum(
    problem: AllocationProblem,
    costs: Floats | None = None,
    deadlines: Mapping[int, float] | None = None,
) -> Floats:
    """Maximise the sum of steps per second over cost, not normalised, so that jobs with short steps win.

    Args:
        problem: the problem.
        costs: [W] cost of a GPU-second of each type.
        deadlines: job -> steps per second that it needs; all are dropped if they cannot be met together.
    """
    progress = problem.progress()
    target = -np.asarray(progress.sum(axis=0), float) / np.tile(
        np.ones(len(problem.counts)) if costs is None else costs, len(problem.rows)
    )
    matrix, bound = problem.limits()
    if deadlines:
        jobs = list(deadlines)
        floor = -progress[jobs]
        with_floor = vstack([matrix, floor])
        x = _solve(problem, target, with_floor, np.concatenate([bound, [-deadlines[j] for j in jobs]]))
        if x is not None:
            return x
    x = _solve(problem, target, matrix, bound)
    assert x is not None  # nothing at all is always feasible
    return x


def finish_time_fair(
    problem: AllocationProblem, elapsed_s: Floats, left: Floats, isolated_s: Floats
) -> Floats:
    """Minimise the largest rho_i = (t_i + n_i / speed_i) / D_i.

    The program is linear for a given rho; the largest rho of each solution is used for the next, until none
    is smaller.

    Args:
        problem: the problem.
        elapsed_s: [J] t_i, since the job arrived.
        left: [J] n_i, steps.
        isolated_s: [J] D_i, completion time under the isolated split; infinite if the job cannot run now, which
            does not count.
    """
    progress = problem.progress()
    x = max_min(problem)
    best_x, best = x, _largest_rho(progress @ x.ravel(), elapsed_s, left, isolated_s)
    for _ in range(100):
        if not 0 < best < np.inf:
            break
        spare = best * isolated_s - elapsed_s
        if (spare <= 0).any():
            break
        x, floor = _floor(problem, progress, left / spare)
        rho = _largest_rho(progress @ x.ravel(), elapsed_s, left, isolated_s)
        if rho < best:
            best_x, best = x, rho
        if floor <= 1.0 + 1e-12 or rho >= best * (1.0 - 1e-13) > rho - 1e-18:
            break
    return best_x


def blind_speeds(problem: AllocationProblem, reference: int) -> AllocationProblem:
    """The heterogeneity-blind baseline of finish-time fairness.

    Every type is as fast as type number `reference`. Rows that cannot run there are as fast as on the first
    type where they can.
    """
    runs = problem.speed.max(axis=2) > 0
    first = np.where(runs[:, reference], reference, runs.argmax(axis=1))
    own = np.take_along_axis(problem.speed, first[:, None, None], axis=1)
    speed = np.repeat(own, len(problem.counts), axis=1)
    return AllocationProblem(problem.rows, speed, problem.gpus, problem.counts)


def _largest_rho(speed: Floats, elapsed_s: Floats, left: Floats, isolated_s: Floats) -> float:
    able = np.isfinite(isolated_s)
    with np.errstate(divide="ignore"):
        return float(((elapsed_s + left / speed)[able] / isolated_s[able]).max(initial=0.0))


def _floor(problem: AllocationProblem, progress: csr_array, need: Floats) -> tuple[Floats, float]:
    """Largest z with progress_i >= z need_i for all jobs, and among its optima the one with the most progress
    over need."""
    needed = need > 0
    if not needed.any():
        return np.zeros((len(problem.rows), len(problem.counts))), 0.0
    matrix, bound = problem.limits()
    cells = matrix.shape[1]
    floor = hstack([-progress, csr_array(need[:, None])])
    wide = hstack([matrix, csr_array((matrix.shape[0], 1))])
    target = np.zeros(cells + 1)
    target[-1] = -1.0
    x = _solve(
        problem, target, vstack([wide, floor]), np.concatenate([bound, np.zeros(problem.jobs)]), extra=1
    )
    if x is None:
        raise InfeasibleError("the allocation program has no solution", got=f"{problem.jobs} jobs")
    z = float(((progress @ x.ravel())[needed] / need[needed]).min())
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(need > 0, 1.0 / need, 0.0)
    fill = _solve(
        problem,
        -np.asarray(worth @ progress, float),
        vstack([matrix, -progress]),
        np.concatenate([bound, -z * (1.0 - 1e-9) * need]),
    )
    return (x if fill is None else fill), z


def _solve(
    problem: AllocationProblem, target: Floats, matrix: csr_array, bound: Floats, extra: int = 0
) -> Floats | None:
    """[R, W] minimiser of target @ x, None if there is none; `extra` further variables are dropped."""
    upper = np.where(problem.allowed().ravel(), 1.0, 0.0)
    bounds = np.column_stack([np.zeros(len(target)), np.concatenate([upper, np.full(extra, np.inf)])])
    result: Any = _linprog(target, A_ub=matrix, b_ub=bound, bounds=bounds, method="highs")
    if result.x is None or result.status != 0:
        return None
    cells = len(upper)
    x = np.clip(result.x[:cells], 0.0, 1.0)
    return np.asarray(x.reshape(len(problem.rows), len(problem.counts)), float)
