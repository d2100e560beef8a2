"""The least makespan of a small instance in slot time, as an integer programme (HiGHS)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from profiling.errors import InfeasibleError, InputError, LimitError
from scheduling.ring.dispatch import check_gangs
from scheduling.ring.engine import Assignment, Execution, Gpu, RingSchedule, replay
from scheduling.ring.fabric import SERVER_UPLINKS
from scheduling.ring.model import RingCluster, RingJob, iterations_per_slot, ring_timing


@dataclass(frozen=True, slots=True)
class ExactSchedule:
    """lower_bound_s: no schedule is shorter; equals the makespan when `optimal`."""

    schedule: RingSchedule
    lower_bound_s: float
    optimal: bool


def distributions(servers: Sequence[int], gpus: int) -> Iterator[dict[int, int]]:
    """Every way to place a gang: server index → GPUs."""
    for counts in itertools.product(*(range(min(count, gpus) + 1) for count in servers)):
        if sum(counts) == gpus:
            yield {server: count for server, count in enumerate(counts) if count}


def exact(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution,
    incumbent: RingSchedule,
    *,
    time_limit_s: float = 60.0,
    largest: int = 60_000,
) -> ExactSchedule:
    """Minimise the makespan over starts and placements, contention included.

    Variables: z[j, c, p, t] = 1 when job j runs in slot t on placement c at contention p; s[j, c, t] = 1 when it starts.
    A job runs in one piece until its work is done; p is at least the number of split jobs on each of its servers, and
    since a larger p is slower it is that number where it matters.

    Args:
        execution: slot time on server uplinks, equation 7 clamped (so that a larger p is never faster).
        incumbent: any schedule in the same slot time; its makespan bounds the slots.
        largest: variables at most.

    Raises:
        InputError: not slot time, or another fabric. LimitError: too large. InfeasibleError: a gang does not fit.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    slot_s = execution.slot_s
    if slot_s is None or execution.fabric != SERVER_UPLINKS or not execution.clamp:
        got = (
            "continuous time" if slot_s is None else "the literal form" if not execution.clamp else "a fabric"
        )
        raise InputError(
            "exact schedules are in slot time", expected="slots, server uplinks and the clamped form", got=got
        )
    check_gangs(cluster, jobs)
    slots = round(incumbent.makespan_s / slot_s)
    placements = [list(distributions(cluster.servers, job.gpus)) for job in jobs]
    split_possible = [any(len(c) > 1 for c in options) for options in placements]

    # z and s columns, and the work each z does.
    columns: dict[tuple[int, int, int, int], int] = {}
    starts: dict[tuple[int, int, int], int] = {}
    work: list[float] = []
    for j, job in enumerate(jobs):
        rivals = sum(split_possible) - 1
        for c, option in enumerate(placements[j]):
            for p in range(1, rivals + 2) if len(option) > 1 else (0,):
                done = iterations_per_slot(ring_timing(cluster, job, option, p), slot_s)
                for t in range(slots):
                    columns[j, c, p, t] = len(work)
                    work.append(done)
    for j in range(len(jobs)):
        for c in range(len(placements[j])):
            for t in range(slots):
                starts[j, c, t] = len(work) + len(starts)
    n = len(work) + len(starts) + 1
    if n > largest:
        raise LimitError("the instance is too large to solve exactly", expected=f"{largest} variables", got=n)
    makespan = n - 1
    runs: dict[tuple[int, int, int], list[int]] = {}
    for (j, c, _, t), column in columns.items():
        runs.setdefault((j, c, t), []).append(column)

    rows: list[tuple[dict[int, float], float, float]] = []
    inf = float("inf")
    for j, job in enumerate(jobs):
        rows.append((dict.fromkeys((starts[k] for k in starts if k[0] == j), 1.0), 1, 1))
        rows.append(({x: work[x] for k, x in columns.items() if k[0] == j}, job.iterations, inf))
        for t in range(slots):
            now = [x for c in range(len(placements[j])) for x in runs[j, c, t]]
            rows.append((dict.fromkeys(now, 1.0), -inf, 1))
            rows.append((dict.fromkeys(now, float(t + 1)) | {makespan: -1.0}, -inf, 0))
            for c in range(len(placements[j])):
                # Running now means that it ran before or starts now: one piece, one placement.
                row = dict.fromkeys(runs[j, c, t], 1.0) | {starts[j, c, t]: -1.0}
                if t:
                    row |= dict.fromkeys(runs[j, c, t - 1], -1.0)
                rows.append((row, -inf, 0))
    for t in range(slots):
        for server, capacity in enumerate(cluster.servers):
            row = {}
            split: dict[int, float] = {}
            for j in range(len(jobs)):
                for c, option in enumerate(placements[j]):
                    if server in option:
                        row |= dict.fromkeys(runs[j, c, t], float(option[server]))
                        if len(option) > 1:
                            split |= dict.fromkeys(runs[j, c, t], 1.0)
            rows.append((row, -inf, capacity))
            for j in range(len(jobs)):
                crossing = [
                    c for c, option in enumerate(placements[j]) if server in option and len(option) > 1
                ]
                if not crossing:
                    continue
                # split jobs here <= p of job j, when job j is split over this server now.
                big = float(sum(split_possible))
                contention = dict(split)
                for c in crossing:
                    for p in range(1, int(big) + 1):
                        x = columns[j, c, p, t]
                        contention[x] = contention.get(x, 0.0) - p + big
                rows.append((contention, -inf, big))

    values, row_index, column_index = [], [], []
    for i, (row, _, _) in enumerate(rows):
        for x, value in row.items():
            row_index.append(i)
            column_index.append(x)
            values.append(value)
    matrix = coo_array((values, (row_index, column_index)), shape=(len(rows), n)).tocsr()
    cost = np.zeros(n)
    cost[makespan] = 1.0
    upper = np.ones(n)
    upper[makespan] = slots
    integrality = np.ones(n, dtype=int)
    result = milp(
        cost,
        constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
        bounds=Bounds(np.zeros(n), upper),
        integrality=integrality,
        options={"time_limit": time_limit_s},
    )
    if result.status == 2:
        raise InfeasibleError("no schedule within the incumbent's makespan", hint="is it in slot time?")
    bound = slot_s * round(result.mip_dual_bound) if result.mip_dual_bound is not None else 0.0
    if result.x is None:
        return ExactSchedule(incumbent, bound, False)
    chosen = {}
    for (j, c, t), x in starts.items():
        if result.x[x] > 0.5:
            chosen[jobs[j].name] = (t * slot_s, placements[j][c])
    schedule = replay(cluster, jobs, _with_gpus(cluster, jobs, chosen, execution), execution)
    return ExactSchedule(schedule, bound, result.status == 0)


def _with_gpus(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    chosen: Mapping[str, tuple[float, Mapping[int, int]]],
    execution: Execution,
) -> list[Assignment]:
    """Name GPUs for counts: the lowest idle ones of each server at the start."""
    from scheduling.ring.engine import RingRun

    by_name = {job.name: job for job in jobs}
    run = RingRun(cluster, execution)
    assignments = []
    for name, (start_s, placement) in sorted(chosen.items(), key=lambda item: item[1][0]):
        run.advance(start_s)
        gpus: list[Gpu] = []
        for server, count in placement.items():
            gpus.extend((server, gpu) for gpu in sorted(run.idle[server])[:count])
        run.start(by_name[name], gpus)
        assignments.append(Assignment(name, tuple(gpus), start_s, start_s))
    return assignments
