"""The most informative co-location sets per second of measuring.

The slowdown of a set is modelled as a Gaussian process over its members' demands. Sets are chosen one at a
time by the remaining variance given those already chosen, per second (greedy design by entropy; Krause et
al., "Near-Optimal Sensor Placements in Gaussian Processes", JMLR 2008, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.types import Floats

# Variance of one measurement, relative to the prior's; sets in which every job should appear.
_NOISE, _COVER = 0.01, 3


def standardize(values: Floats) -> Floats:
    """Columns with mean 0 and standard deviation 1; a constant column becomes 0."""
    spread = values.std(axis=0)
    result: Floats = (values - values.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)
    return result


def set_kernel(features: Floats, sets: Sequence[tuple[int, ...]], modes: Floats) -> Floats:
    """[S, S] similarity of sets, scaled to a unit diagonal.

    The mean over member pairs of a squared-exponential kernel on (own demands, mean demands of the others,
    their number, sharing mode). A mean of kernels over all pairs of two bags is positive semi-definite
    (Gaertner et al., "Multi-Instance Kernels", ICML 2002).

    Args:
        features: [J, F] demands of the jobs.
        sets: [S] numbers of each set's jobs.
        modes: [S] number of each set's sharing mode.
    """
    x = standardize(features)
    rows, owner = [], []
    for s, members in enumerate(sets):
        for i, member in enumerate(members):
            others = [x[m] for j, m in enumerate(members) if j != i]
            rows.append(
                np.concatenate([x[member], np.mean(others, axis=0), [2.0 * len(members), 2.0 * modes[s]]])
            )
            owner.append(s)
    points = np.stack(rows)
    length = np.sqrt(points.shape[1])
    squares = (points**2).sum(axis=1)
    distance = np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0.0)
    member_kernel = np.exp(-0.5 * distance / length**2)
    weight = np.zeros((len(sets), len(points)))
    weight[owner, np.arange(len(points))] = 1.0
    weight /= weight.sum(axis=1, keepdims=True)
    kernel = weight @ member_kernel @ weight.T
    unit = np.sqrt(np.diag(kernel))
    result: Floats = kernel / np.outer(unit, unit)
    return result


def greedy_design(
    kernel: Floats,
    costs: Floats,
    budget_s: float,
    members: Sequence[tuple[int, ...]],
) -> list[tuple[int, float]]:
    """Choose sets one at a time by conditional variance / cost until the budget is spent.

    A set is weighted up to eleven times higher while its members are in fewer than `_COVER` chosen sets, so
    that every job is seen with others. One step of a pivoted Cholesky factorisation per choice: O(S x
    choices) each.

    Args:
        kernel: [S, S] prior covariance.
        costs: [S] seconds.
        budget_s: total seconds for all chosen sets.
        members: [S] jobs of each set.

    Returns:
        (index, variance before it was chosen), in order.
    """
    count = len(kernel)
    variance = np.diag(kernel).astype(float).copy()
    factor = np.zeros((0, count))
    chosen: list[tuple[int, float]] = []
    free = np.ones(count, dtype=bool)
    holds = np.zeros((count, 1 + max((m for some in members for m in some), default=0)))
    for s, some in enumerate(members):
        holds[s, list(some)] = 1.0
    while True:
        affordable = free & (costs <= budget_s + 1e-9)
        if not affordable.any():
            return chosen
        seen = np.array([i for i, _ in chosen], dtype=int)
        lacking = holds[seen].sum(axis=0) < _COVER
        bonus = 1.0 + 10.0 * (holds @ lacking) / holds.sum(axis=1)
        score = np.where(affordable, np.maximum(variance, 1e-6) * bonus / costs, -np.inf)
        pick = int(np.argmax(score))
        chosen.append((pick, float(variance[pick])))
        row = (kernel[pick] - factor[:, pick] @ factor) / np.sqrt(max(variance[pick], 0.0) + _NOISE)
        factor = np.vstack([factor, row])
        variance = variance - row**2
        free[pick] = False
        budget_s -= float(costs[pick])
