"""Assigns configurations to jobs: at most one per job, GPUs of each type within capacity.

The optimum is that of the full matrix, with less to solve: configurations that cannot be in an optimum (worth
nothing, or no more than a smaller one of the same type) are left out, equal rows become one row with a count,
GPUs of jobs that must keep what they have are subtracted from the capacity, and of the rest, only a core is
solved that GPU prices prove to be sufficient.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from predictor.types import Floats
from profiling.errors import InfeasibleError
from scheduling.core.highs import solve_milp
from scheduling.core.set_cache import Ints


def solve(
    worth: Floats,
    gpus: Ints,
    kinds: Ints,
    capacity: Ints,
    forced: dict[int, int] | None = None,
    gap: float = 1e-4,
) -> Ints:
    """Configuration of each job, or -1.

    Args:
        worth: [J, C] utilities, -inf where not possible.
        gpus, kinds: [C] GPUs and type of each configuration.
        capacity: [T] GPUs of each type.
        forced: job row -> configuration that it keeps.
        gap: relative gap at which the solver may stop.

    Raises:
        InfeasibleError: the forced configurations exceed the capacity.
    """
    chosen = np.full(len(worth), -1, np.int64)
    room = np.asarray(capacity, np.int64).copy()
    for row, column in (forced or {}).items():
        chosen[row] = column
        room[kinds[column]] -= gpus[column]
    if (room < 0).any():
        raise InfeasibleError(
            "jobs that must keep their GPUs do not fit on the cluster", expected="within capacity"
        )
    free = np.array([row for row in range(len(worth)) if row not in (forced or {})], np.int64)
    if not free.size:
        return chosen
    useful = _useful(worth[free], gpus, kinds, room)
    rows = np.where(useful, worth[free], 0.0)
    classes, member = np.unique(rows, axis=0, return_inverse=True)
    member = member.reshape(-1)
    count = np.bincount(member, minlength=len(classes))
    if not (classes > 0).any():
        return chosen
    where_class, where_config, amounts = _core(classes, count, gpus, kinds, room, gap)
    waiting: dict[int, list[int]] = {}
    for job, number in zip(free.tolist(), member.tolist(), strict=True):
        waiting.setdefault(number, []).append(job)
    for number, column, amount in zip(
        where_class.tolist(), where_config.tolist(), amounts.tolist(), strict=True
    ):
        for _ in range(amount):
            chosen[waiting[number].pop(0)] = column
    return chosen


def solve_full(worth: Floats, gpus: Ints, kinds: Ints, capacity: Ints, gap: float = 1e-4) -> Ints:
    """The plain formulation, one binary per job and configuration; reference for tests and benchmarks."""
    jobs, configs = worth.shape
    where_job, where_config = (a.reshape(-1) for a in np.indices((jobs, configs)))
    value = np.where(np.isfinite(worth), worth, -1e3).reshape(-1)
    ones = np.ones(jobs, np.int64)
    amounts = _milp(value, where_job, where_config, ones, gpus, kinds, np.asarray(capacity), gap)
    table = amounts.reshape(jobs, configs)
    return np.where(table.any(axis=1), table.argmax(axis=1), -1)


def solve_columns(
    columns: Sequence[tuple[float, tuple[int, ...], int, int]],
    jobs: int,
    capacity: Ints,
    gap: float = 1e-4,
    kept: Collection[int] = (),
) -> list[int]:
    """Indices of the chosen columns (worth, job rows, type, GPUs).

    Each job is in at most one, those of `kept` in exactly one, and capacity is respected.

    Raises:
        InfeasibleError: those of `kept` exceed the capacity.
    """
    from scipy.sparse import csr_array

    if not columns:
        return []
    pairs = [(row, k) for k, (_, rows, _, _) in enumerate(columns) for row in rows]
    at = np.array(pairs, np.int64)
    once = csr_array((np.ones(len(at)), (at[:, 0], at[:, 1])), shape=(jobs, len(columns)))
    kinds, gpus = np.array([c[2] for c in columns]), np.array([c[3] for c in columns], float)
    use = csr_array((gpus, (kinds, np.arange(len(columns)))), shape=(len(capacity), len(columns)))
    least = np.where(np.isin(np.arange(jobs), list(kept)), 1.0, -np.inf)
    return np.flatnonzero(
        _maximise(np.array([c[0] for c in columns]), 1, once, 1, use, capacity, gap, least)
    ).tolist()


def total_worth(worth: Floats, chosen: Ints) -> float:
    """Sum of the utilities of a solution."""
    rows = np.flatnonzero(chosen >= 0)
    return float(worth[rows, chosen[rows]].sum())


def _useful(
    worth: Floats, gpus: Ints, kinds: Ints, room: Ints
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[J, C] mask without configurations that cost more GPUs of a type and are worth no more."""
    useful = (worth > 0) & (gpus <= room[kinds])
    for kind in np.unique(kinds):
        columns = np.flatnonzero(kinds == kind)
        columns = columns[np.argsort(gpus[columns], kind="stable")]
        best = np.zeros(len(worth))
        for column in columns:
            useful[:, column] &= worth[:, column] > best
            best = np.where(useful[:, column], np.maximum(best, worth[:, column]), best)
    return useful


def _core(
    table: Floats, count: Ints, gpus: Ints, kinds: Ints, room: Ints, gap: float
) -> tuple[Ints, Ints, Ints]:
    """Optimum over the few variables that matter, proven by GPU prices: (row, configuration, amount).

    With a price per GPU of each type, the problem separates into rows, whose sum bounds the optimum from
    above (Lagrangian bound). The reduced cost of a variable is how far it falls short of its row's best; only
    variables with a low reduced cost are solved for. The others cannot be in an optimum if the bound minus
    their reduced cost is below the value found; otherwise the core grows to include those that can.

    Args:
        table: [K, C] worth, 0 if useless.
        count: [K] jobs of each row.
        gpus, kinds: [C] GPUs and type of each configuration.
        room: [T] GPUs of each type.
        gap: relative gap at which the solver may stop.
    """
    prices = _gpu_prices(table, count, gpus, kinds, room)
    reduced = np.where(table > 0, table - prices[kinds] * gpus, -np.inf)
    best = np.maximum(reduced.max(axis=1), 0.0)
    bound = float(count @ best + prices @ room)
    price = np.where(table > 0, best[:, None] - reduced, np.inf)
    cut = max(0.02 * float(table.max()), float(price.min()))  # with any prices, it is not empty
    while True:
        rows, columns = np.nonzero(price <= cut)
        amounts = _milp(table[rows, columns], rows, columns, count, gpus, kinds, room, gap)
        value = float(table[rows, columns] @ amounts)
        outside = price[(price > cut) & np.isfinite(price)]
        slack = bound - value * (1.0 - gap)
        if not outside.size or outside.min() > slack:
            return rows, columns, amounts
        cut = slack + 1e-9


def _gpu_prices(table: Floats, count: Ints, gpus: Ints, kinds: Ints, room: Ints) -> Floats:
    """[T] price per GPU that (nearly) minimises the Lagrangian bound, smoothed with less and less
    smoothing."""
    from scipy.optimize import minimize

    types = len(room)
    member = np.zeros((len(gpus), types))
    member[np.arange(len(gpus)), kinds] = gpus
    worth = np.where(table > 0, table, -1e9)
    prices = np.full(types, float(table.max()) / max(float(gpus.max()), 1.0))
    for heat in (0.1, 0.02, 0.004, 0.001):

        def bound(x: Floats, heat: float = heat) -> tuple[float, Floats]:
            value = (worth - member @ x) / heat
            top = np.maximum(value.max(axis=1), 0.0)
            weight = np.exp(value - top[:, None])
            total = weight.sum(axis=1) + np.exp(-top)
            use = (count / total) @ weight @ member
            return float(heat * (count @ (top + np.log(total))) + x @ room), room - use

        prices = minimize(bound, prices, jac=True, bounds=[(0, None)] * types, method="L-BFGS-B").x
    return np.asarray(prices, float)


def _milp(
    value: Floats, rows: Ints, columns: Ints, count: Ints, gpus: Ints, kinds: Ints, room: Ints, gap: float
) -> Ints:
    from scipy.sparse import csr_array

    index = np.arange(len(rows))
    once = csr_array((np.ones(len(rows)), (rows, index)), shape=(len(count), len(rows)))
    use = csr_array((gpus[columns].astype(float), (kinds[columns], index)), shape=(len(room), len(rows)))
    return _maximise(value, count[rows], once, count, use, room, gap)


def _maximise(
    value: Floats,
    most: Ints | int,
    once: Any,
    count: Ints | int,
    use: Any,
    room: Ints,
    gap: float,
    least: Floats | float = -np.inf,
) -> Ints:
    """Integers x from 0 to `most` with the highest value @ x, least <= once @ x <= count and use @ x <= room."""
    from scipy.optimize import Bounds, LinearConstraint

    solution = solve_milp(
        -value,
        integrality=np.ones(len(value), np.int64),
        bounds=Bounds(0, most),
        constraints=[LinearConstraint(once, least, count), LinearConstraint(use, -np.inf, room)],
        options={"mip_rel_gap": gap},
    )
    if solution.x is None:
        raise InfeasibleError("the solver found no assignment", got=solution.message)
    return np.round(solution.x).astype(np.int64)
