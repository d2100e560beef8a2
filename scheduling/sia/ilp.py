"""The assignment of configurations to jobs: at most one a job, GPUs of each type within capacity.

Same optimum as the full matrix, less to solve: configurations that cannot be in an optimum are left out (worth
nothing, or worth no more than a smaller one of the same type), equal rows are one row with a count, jobs that must
keep what they have are taken off the capacity first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from predictor.types import Floats
from profiling.errors import InfeasibleError
from scheduling.sets import Ints


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
        raise InfeasibleError("jobs that must keep their GPUs exceed the cluster", expected="within capacity")
    free = np.array([row for row in range(len(worth)) if row not in (forced or {})], np.int64)
    if not free.size:
        return chosen
    useful = _useful(worth[free], gpus, kinds, room)
    rows = np.where(useful, worth[free], 0.0)
    classes, member = np.unique(rows, axis=0, return_inverse=True)
    member = member.reshape(-1)
    count = np.bincount(member, minlength=len(classes))
    where_class, where_config = np.nonzero(classes > 0)
    if not where_class.size:
        return chosen
    amounts = _milp(
        classes[where_class, where_config], where_class, where_config, count, gpus, kinds, room, gap
    )
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
    """The plain formulation, one binary per job and configuration: the reference for tests and benchmarks."""
    jobs, configs = worth.shape
    where_job, where_config = (a.reshape(-1) for a in np.indices((jobs, configs)))
    value = np.where(np.isfinite(worth), worth, -1e3).reshape(-1)
    ones = np.ones(jobs, np.int64)
    amounts = _milp(value, where_job, where_config, ones, gpus, kinds, np.asarray(capacity), gap)
    table = amounts.reshape(jobs, configs)
    return np.where(table.any(axis=1), table.argmax(axis=1), -1)


def total_worth(worth: Floats, chosen: Ints) -> float:
    """Sum of the utilities of a solution."""
    rows = np.flatnonzero(chosen >= 0)
    return float(worth[rows, chosen[rows]].sum())


def _useful(
    worth: Floats, gpus: Ints, kinds: Ints, room: Ints
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[J, C] without what costs more GPUs of a type and is worth no more."""
    useful = (worth > 0) & (gpus <= room[kinds])
    for kind in np.unique(kinds):
        columns = np.flatnonzero(kinds == kind)
        columns = columns[np.argsort(gpus[columns], kind="stable")]
        best = np.zeros(len(worth))
        for column in columns:
            useful[:, column] &= worth[:, column] > best
            best = np.where(useful[:, column], np.maximum(best, worth[:, column]), best)
    return useful


def _milp(
    value: Floats, rows: Ints, columns: Ints, count: Ints, gpus: Ints, kinds: Ints, room: Ints, gap: float
) -> Ints:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    size = len(value)
    index = np.arange(size)
    once = csr_array((np.ones(size), (rows, index)), shape=(len(count), size))
    use = csr_array((gpus[columns].astype(float), (kinds[columns], index)), shape=(len(room), size))
    with _quiet():
        found = milp(
            -value,
            integrality=np.ones(size),
            bounds=Bounds(0, count[rows]),
            constraints=[LinearConstraint(once, -np.inf, count), LinearConstraint(use, -np.inf, room)],
            options={"mip_rel_gap": gap},
        )
    if found.x is None:
        raise InfeasibleError("the solver found no assignment", got=found.message)
    return np.round(found.x).astype(np.int64)


@contextmanager
def _quiet() -> Iterator[None]:
    """HiGHS writes a line to file descriptor 1 now and then, whatever its options; send it to stderr, because
    stdout is where a command's JSON goes."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
