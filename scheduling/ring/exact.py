"""Minimum makespan of a small instance in slot time, as an integer program (HiGHS)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiling.errors import InfeasibleError, InputError, LimitError
from scheduling.core.highs import solve_milp
from scheduling.ring.dispatch import check_gangs
from scheduling.ring.engine import Execution, Gpu, RingRun, RingSchedule
from scheduling.ring.fabric import SERVER_UPLINKS
from scheduling.ring.model import RingCluster, RingJob, iterations_per_slot, ring_timing

_Row = tuple[dict[int, float], float, float]  # coefficients, lower and upper bound


@dataclass(frozen=True, slots=True)
class ExactSchedule:
    """A schedule and a lower bound on the makespan, which equals it if `optimal`."""

    schedule: RingSchedule
    lower_bound_s: float
    optimal: bool


def distributions(servers: Sequence[int], gpus: int) -> Iterator[dict[int, int]]:
    """Every way to place a gang: server index → GPUs."""
    room = list(itertools.accumulate(reversed(servers), initial=0))[::-1]  # GPUs from each server on
    stack: list[tuple[tuple[tuple[int, int], ...], int, int]] = [((), 0, gpus)]
    while stack:
        placed, first, left = stack.pop()
        if not left:
            yield dict(placed)
            continue
        for server in range(first, len(servers)):
            if room[server] < left:
                break
            least = max(left - room[server + 1], 1)
            stack += (
                ((*placed, (server, count)), server + 1, left - count)
                for count in range(min(servers[server], left), least - 1, -1)
            )


def check_exact(execution: Execution) -> float:
    """The slot in seconds, of which `exact` has a program.

    Raises:
        InputError: not slot time, another fabric, or the literal form.
    """
    slot_s = execution.slot_s
    if slot_s is None or execution.fabric != SERVER_UPLINKS or not execution.clamp:
        got = (
            "continuous time" if slot_s is None else "the literal form" if not execution.clamp else "a fabric"
        )
        raise InputError(
            "exact schedules are in slot time", expected="slots, server uplinks and the clamped form", got=got
        )
    return slot_s


def exact(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution,
    incumbent: RingSchedule,
    *,
    time_limit_s: float = 60.0,
    largest: int = 60_000,
) -> ExactSchedule:
    """Minimise the makespan over starts and placements, including contention.

    Variables: z[j, c, p, t] = 1 if job j runs in slot t on placement c at contention p; s[j, c, t] = 1 if it
    starts. A job runs without interruption until its work is done; p is at least the number of split jobs on
    each of its servers and, since a larger p is slower, equals it where it matters.

    Args:
        cluster: the cluster.
        jobs: the jobs.
        execution: slot time on server uplinks, equation 7 clamped (so that a larger p is never faster).
        incumbent: any schedule in the same slot time; its makespan bounds the slots.
        time_limit_s: time limit of the solver.
        largest: largest number of variables.

    Raises:
        InputError: not slot time, or another fabric.
        LimitError: too large.
        InfeasibleError: a gang does not fit.
    """
    slot_s = check_exact(execution)
    check_gangs(cluster, jobs)

    def limit(size: int) -> None:
        if size > largest:
            raise LimitError(
                "the instance is too large to solve exactly", expected=f"{largest} variables", got=size
            )

    slots = round(incumbent.makespan_s / slot_s)
    limit(slots * len(jobs))  # at least as many; the program itself may be too large to be written down
    placements: list[list[dict[int, int]]] = []
    for job in jobs:
        placements.append(list(itertools.islice(distributions(cluster.servers, job.gpus), largest + 1)))
        limit(slots * sum(map(len, placements)))
    limit(_size(placements, slots))
    program = _Program(cluster, jobs, slot_s, slots, placements)
    result = program.solve(time_limit_s)
    if result.status == 2:
        raise InfeasibleError("no schedule within the incumbent's makespan", hint="is it in slot time?")
    bound = slot_s * round(result.mip_dual_bound) if result.mip_dual_bound is not None else 0.0
    if result.x is None:
        return ExactSchedule(incumbent, bound, False)
    chosen = {
        jobs[j].name: (t * slot_s, program.placements[j][c])
        for (j, c, t), x in program.starts.items()
        if result.x[x] > 0.5
    }
    return ExactSchedule(_run(cluster, jobs, chosen, execution), bound, result.status == 0)


def _size(placements: Sequence[Sequence[Mapping[int, int]]], slots: int) -> int:
    """Number of variables of a `_Program`."""
    split_jobs = _split_jobs(placements)
    each = (1 + (split_jobs if len(option) > 1 else 1) for options in placements for option in options)
    return slots * sum(each) + 1


def _split_jobs(placements: Sequence[Sequence[Mapping[int, int]]]) -> int:
    """Number of jobs that some placement splits, and so may contend."""
    return sum(any(len(option) > 1 for option in options) for options in placements)


class _Program:
    """Variables and constraints of `exact`; the last variable is the makespan in slots.

    Attributes:
        placements: possible placements of each job.
        columns: (job, placement, contention, slot) to the variable z.
        starts: (job, placement, slot) to the variable s.
        work: iterations done by each z.
    """

    def __init__(
        self,
        cluster: RingCluster,
        jobs: Sequence[RingJob],
        slot_s: float,
        slots: int,
        placements: Sequence[Sequence[Mapping[int, int]]],
    ) -> None:
        self.cluster, self.jobs, self.slots, self.placements = cluster, jobs, slots, placements
        self.columns: dict[tuple[int, int, int, int], int] = {}
        self.starts: dict[tuple[int, int, int], int] = {}
        self.work: list[float] = []
        self.split_jobs = _split_jobs(placements)
        for j, job in enumerate(jobs):
            for c, option in enumerate(self.placements[j]):
                for p in range(1, self.split_jobs + 1) if len(option) > 1 else (0,):
                    done = iterations_per_slot(ring_timing(cluster, job, option, p), slot_s)
                    for t in range(slots):
                        self.columns[j, c, p, t] = len(self.work)
                        self.work.append(done)
        for j in range(len(jobs)):
            for c in range(len(self.placements[j])):
                for t in range(slots):
                    self.starts[j, c, t] = len(self.work) + len(self.starts)
        self.size = _size(placements, slots)
        self.runs: dict[tuple[int, int, int], list[int]] = {}
        for (j, c, _, t), column in self.columns.items():
            self.runs.setdefault((j, c, t), []).append(column)

    def solve(self, time_limit_s: float) -> Any:
        """The solution found by HiGHS."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint
        from scipy.sparse import coo_array

        rows = [*self._of_jobs(), *self._of_servers()]
        values, row_index, column_index = [], [], []
        for i, (row, _, _) in enumerate(rows):
            for x, value in row.items():
                row_index.append(i)
                column_index.append(x)
                values.append(value)
        matrix = coo_array((values, (row_index, column_index)), shape=(len(rows), self.size)).tocsr()
        cost, upper = np.zeros(self.size), np.ones(self.size)
        cost[-1], upper[-1] = 1.0, self.slots
        return solve_milp(
            cost,
            constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
            bounds=Bounds(np.zeros(self.size), upper),
            integrality=np.ones(self.size, dtype=int),
            options={"time_limit": time_limit_s},
        )

    def _of_jobs(self) -> Iterator[_Row]:
        """Each job starts once, does its work without interruption, and ends by the makespan."""
        for j, job in enumerate(self.jobs):
            yield dict.fromkeys((self.starts[k] for k in self.starts if k[0] == j), 1.0), 1, 1
            yield {x: self.work[x] for k, x in self.columns.items() if k[0] == j}, job.iterations, math.inf
            for t in range(self.slots):
                now = [x for c in range(len(self.placements[j])) for x in self.runs[j, c, t]]
                yield dict.fromkeys(now, 1.0), -math.inf, 1
                yield dict.fromkeys(now, float(t + 1)) | {self.size - 1: -1.0}, -math.inf, 0
                for c in range(len(self.placements[j])):
                    # Running now requires running in the previous slot or starting now: no interruption, one
                    # placement.
                    row = dict.fromkeys(self.runs[j, c, t], 1.0) | {self.starts[j, c, t]: -1.0}
                    if t:
                        row |= dict.fromkeys(self.runs[j, c, t - 1], -1.0)
                    yield row, -math.inf, 0

    def _of_servers(self) -> Iterator[_Row]:
        """No server exceeds its GPUs, and a job's contention is at least the number of split jobs on its
        servers."""
        for t, (server, capacity) in itertools.product(range(self.slots), enumerate(self.cluster.servers)):
            row: dict[int, float] = {}
            split: dict[int, float] = {}
            crossing: dict[int, list[int]] = {}
            for j, options in enumerate(self.placements):
                for c, option in enumerate(options):
                    if server in option:
                        row |= dict.fromkeys(self.runs[j, c, t], float(option[server]))
                        if len(option) > 1:
                            split |= dict.fromkeys(self.runs[j, c, t], 1.0)
                            crossing.setdefault(j, []).append(c)
            yield row, -math.inf, capacity
            # Split jobs here <= p of job j, if job j is split over this server now.
            big = float(self.split_jobs)
            for j, placements in crossing.items():
                contention = dict(split)
                for c, p in itertools.product(placements, range(1, self.split_jobs + 1)):
                    x = self.columns[j, c, p, t]
                    contention[x] = contention.get(x, 0.0) - p + big
                yield contention, -math.inf, big


def _run(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    chosen: Mapping[str, tuple[float, Mapping[int, int]]],
    execution: Execution,
) -> RingSchedule:
    """Run the jobs from their starts, each on the lowest-numbered idle GPUs of its servers."""
    by_name = {job.name: job for job in jobs}
    run = RingRun(cluster, execution)
    for name, (start_s, placement) in sorted(chosen.items(), key=lambda item: item[1][0]):
        run.advance(start_s)
        gpus: list[Gpu] = []
        for server, count in placement.items():
            gpus.extend((server, gpu) for gpu in sorted(run.idle[server])[:count])
        run.start(by_name[name], gpus)
    return run.finish()
