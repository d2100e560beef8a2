"""Ranks many GPU states for a job at once, including waiting for a departure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from profiling.checked_fields import check_range
from profiling.errors import InputError
from scheduling.core.limits import UNKNOWN_LENGTH_S
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.snapshot import Gpu
from scheduling.placement.stages import Stages, stages

OBJECTIVES = ("jct", "interference", "makespan")


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Configuration of the ranking.

    Attributes:
        objective: `jct` the predicted increase of the sum of completion times, `interference` the multi-stage
            score, `makespan` the predicted time at which the GPU becomes empty. The lowest wins.
        max_slowdown: largest predicted slowdown of any member without a budget of its own.
        wait: whether the answer may be to wait for a departure, if that is predicted to be better than any
            GPU now. Waiting always shows no interference, so the objective `interference` waits only for lack
            of room.
        max_members: largest co-location set.
        limit: number of GPUs that the answer ranks.
        literal: the paper's score (contention instead of contention above 1).
        default_duration_s: assumed solo duration of a job of unknown length on the fastest type present.
        gpus: size of a gang: whole empty GPUs of one type, all at once, on as few nodes as possible.
    """

    objective: str = "jct"
    max_slowdown: float = 2.0
    wait: bool = True
    max_members: int = 4
    limit: int = 32
    literal: bool = False
    default_duration_s: float = UNKNOWN_LENGTH_S
    gpus: int = 1

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(
                "unknown objective", expected="one of " + ", ".join(OBJECTIVES), got=self.objective
            )
        check_range(self, lambda value: value >= 1, "a number from 1", "max_slowdown")
        check_range(self, lambda value: value >= 1, "an integer from 1", "max_members", "limit", "gpus")
        check_range(self, lambda value: 0 < value < float("inf"), "seconds above 0", "default_duration_s")


@dataclass(frozen=True, slots=True)
class Candidates:
    """N GPU states as numbers.

    Attributes:
        devices: [N] device numbers of the cache.
        members: [N, M] workload numbers; iterations: [N, M] left; present: [N, M]; budgets: [N, M] or NaN.
    """

    devices: Ints
    members: Ints
    iterations: Floats
    present: NDArray[np.bool_]
    budgets: Floats

    @classmethod
    def of(cls, cache: SetCache, states: Sequence[Gpu]) -> Candidates:
        width = max((len(g.tenants) for g in states), default=0)
        shape = (len(states), width)
        members, present = np.zeros(shape, np.int64), np.zeros(shape, bool)
        iterations, budgets = np.zeros(shape), np.full(shape, np.nan)
        for row, gpu in enumerate(states):
            for column, tenant in enumerate(gpu.tenants):
                members[row, column] = cache.workload_id(tenant.job)
                iterations[row, column] = tenant.iterations_left
                present[row, column] = True
                if tenant.max_slowdown is not None:
                    budgets[row, column] = tenant.max_slowdown
        devices = np.array([cache.device_id(g.device, g.sharing) for g in states], np.int64)
        return cls(devices, members, iterations, present, budgets)

    def take(self, rows: NDArray[Any], width: int | None = None) -> Candidates:
        """Some of the candidates, optionally with the first `width` members only."""
        return Candidates(
            self.devices[rows],
            self.members[rows, :width],
            self.iterations[rows, :width],
            self.present[rows, :width],
            self.budgets[rows, :width],
        )

    def as_is(self, cache: SetCache) -> Stages:
        """The outcome of each state if no job joins it."""
        return stages(cache, self.devices, self.members, self.iterations, self.present)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The predicted outcome for a job on each of N candidates.

    Attributes:
        score: [N] value of the objective; infinite where the job cannot go.
        cost_s: [N] finish plus delays, for any objective.
        finish_s: [N]; delays_s: [N, M]; slowdown: [N, M + 1], the job in the last column.
        extension_s: [N] how much later the GPU becomes empty than without the job.
        fits: [N] memory; within_budget: [N]; has_room: [N] set size.
        worst_slowdown: [N] of any member while all are there.
    """

    score: Floats
    cost_s: Floats
    finish_s: Floats
    delays_s: Floats
    extension_s: Floats
    slowdown: Floats
    fits: NDArray[np.bool_]
    within_budget: NDArray[np.bool_]
    has_room: NDArray[np.bool_]
    worst_slowdown: Floats


def rank(
    cache: SetCache,
    candidates: Candidates,
    workload: Ints | int,
    iterations: Floats | float,
    config: PlacementConfig,
    before: Stages | None = None,
) -> Ranking:
    """Evaluate a job (or one job per candidate) on every candidate.

    Args:
        cache: cache of the predictor.
        candidates: the GPU states.
        workload, iterations: of the job; scalars, or [N] for a different job on each candidate.
        config: configuration.
        before: outcome of the candidates without the job, if the caller already has it.
    """
    count = len(candidates.devices)

    def joined(of_tenants: NDArray[Any], of_job: Any) -> NDArray[Any]:
        """[N, M + 1], laid out along N, as in `stages`."""
        whole = np.empty((of_tenants.shape[1] + 1, count), of_tenants.dtype)
        whole[:-1], whole[-1] = of_tenants.T, of_job
        return whole.T

    members, left = joined(candidates.members, workload), joined(candidates.iterations, iterations)
    present = joined(candidates.present, True)
    scored = config.objective == "interference"  # the other objectives ignore it
    newcomer = joined(np.zeros_like(candidates.present), True) if scored else None
    after = stages(cache, candidates.devices, members, left, present, newcomer, config.literal)
    before = candidates.as_is(cache) if before is None else before
    delays = np.where(candidates.present, after.finish_s[:, :-1] - before.finish_s, 0.0)
    finish = after.finish_s[:, -1]
    cost = finish + delays.sum(axis=1)
    if config.objective == "jct":
        score = cost.copy()
    elif config.objective == "makespan":
        score = after.finish_s.max(axis=1)
    else:
        tenants = np.maximum(candidates.present.sum(axis=1), 1)
        score = after.interference[:, -1] + after.interference[:, :-1].sum(axis=1) / tenants
    budgets = np.where(np.isnan(candidates.budgets), config.max_slowdown, candidates.budgets)
    budgets = joined(budgets, config.max_slowdown)
    within = np.all(~present | (after.slowdown <= budgets), axis=1)
    room = candidates.present.sum(axis=1) < config.max_members
    score = np.where(after.fits & within & room, score, np.inf)
    extension = after.finish_s.max(axis=1) - before.finish_s.max(axis=1, initial=0.0)
    worst = after.slowdown.max(axis=1)
    return Ranking(score, cost, finish, delays, extension, after.slowdown, after.fits, within, room, worst)


def rank_possible(
    cache: SetCache,
    candidates: Candidates,
    workload: Ints | int,
    iterations: Floats | float,
    config: PlacementConfig,
    before: Stages,
) -> Ranking:
    """Like `rank`, but without following what the first stage already refuses.

    There, times are 0 and slowdowns 1. A job without room or memory, or slowed beyond every budget as soon as
    it starts, cannot go there whatever follows; in a busy cluster, this is the case on most GPUs.
    """
    c, count = candidates, len(candidates.devices)
    # [M + 1, N], the job first: sets do not depend on the order of members, and NumPy is slow along rows of a
    # few members.
    shape = (c.members.shape[1] + 1, count)
    members, present = np.empty(shape, np.int64), np.ones(shape, bool)
    members[0], members[1:], present[1:] = workload, c.members.T, c.present.T
    room = sum(present[1:], np.zeros(count, np.int64)) < config.max_members
    rows = cache.rows(c.devices, members.T, present.T)
    fits, worst = cache.fits[rows], cache.worst_slowdown[rows]
    loosest = np.full(count, float(config.max_slowdown))
    for column in range(c.budgets.shape[1]):
        np.fmax(loosest, np.where(c.present[:, column], c.budgets[:, column], np.nan), out=loosest)
    within = worst <= loosest
    at = np.flatnonzero(room & fits & within)
    width = int(np.flatnonzero(c.present[at].any(axis=0))[-1]) + 1 if c.present[at].any() else 0

    def part(of: Ints | Floats | float) -> Any:
        return of[at] if isinstance(of, np.ndarray) else of

    ranking = rank(cache, c.take(at, width), part(workload), part(iterations), config, before.take(at, width))

    def whole(of_some: NDArray[Any], fill: Any = 0.0) -> NDArray[Any]:
        values = np.full((count, *of_some.shape[1:]), fill, of_some.dtype)
        values[at] = of_some
        return values

    delays, slowdown = np.zeros(c.members.shape), np.ones((count, c.members.shape[1] + 1))
    delays[at, :width] = ranking.delays_s
    slowdown[at, :width], slowdown[at, -1] = ranking.slowdown[:, :-1], ranking.slowdown[:, -1]
    within[at] = ranking.within_budget
    return Ranking(
        whole(ranking.score, np.inf), whole(ranking.cost_s), whole(ranking.finish_s), delays,
        whole(ranking.extension_s), slowdown, fits, within, room, worst,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waiting:
    """The best departure to wait for, for each of J jobs.

    Attributes:
        score: [J] including the waiting; infinite if no departure beats the bound.
        wait_s: [J] seconds of waiting.
        candidate: [J] number of the candidate, or -1.
    """

    score: Floats
    wait_s: Floats
    candidate: Ints


def best_wait(
    cache: SetCache,
    candidates: Candidates,
    workloads: Ints,
    iterations: Floats,
    config: PlacementConfig,
    bounds: Floats,
    before: Stages,
) -> Waiting:
    """Place each job after 1, 2, ... departures of each candidate; only what can beat its bound is evaluated.

    Args:
        cache: cache of the predictor.
        candidates: the GPU states.
        workloads, iterations: [J] of the jobs.
        config: configuration.
        bounds: [J] best score without waiting.
        before: outcome of the candidates without the jobs.
    """
    jobs = len(workloads)
    best, wait_s, where = np.full(jobs, np.inf), np.zeros(jobs), np.full(jobs, -1, np.int64)
    gone = np.where(candidates.present, before.finish_s, np.inf)
    # No job finishes sooner than alone after the first departure, which rules out most candidates.
    soonest = gone.min(axis=1, initial=np.inf)
    alone = iterations[:, None] * np.stack(
        [_solo_step_s(cache, candidates.devices, int(w)) for w in workloads]
    )
    rows = np.flatnonzero(np.isfinite(soonest) & (soonest + alone < bounds[:, None]).any(axis=0))
    if not rows.size:
        return Waiting(best, wait_s, where)
    state, alone = candidates.take(rows), alone[:, rows]
    leave = np.sort(gone[rows], axis=1)
    tenants = state.present.sum(axis=1)
    for departures in range(leave.shape[1]):
        wait = leave[:, departures]
        least = wait[None, :] + alone
        room = np.isfinite(wait) & (tenants - departures - 1 < config.max_members)
        job, row = np.nonzero(room[None, :] & (least < np.minimum(bounds, best)[:, None]))
        if not job.size:
            continue
        used, back = np.unique(row, return_inverse=True)
        later = _advance(cache, state.take(used), wait[used]).take(back)
        score = rank(cache, later, workloads[job], iterations[job], config).score + wait[row]
        order = np.lexsort((score, job))
        first = order[np.r_[True, job[order][1:] != job[order][:-1]]]
        better = first[score[first] < np.minimum(bounds, best)[job[first]]]
        best[job[better]], wait_s[job[better]] = score[better], wait[row[better]]
        where[job[better]] = rows[row[better]]
    return Waiting(best, wait_s, where)


def _solo_step_s(cache: SetCache, devices: Ints, workload: int) -> Floats:
    unique, back = np.unique(devices, return_inverse=True)
    rows = cache.solos(unique, workload)  # first: it may grow the cache's arrays
    return cache.step_time_s[rows, 0][back]


def _advance(cache: SetCache, state: Candidates, seconds: Floats) -> Candidates:
    """The candidates `seconds` ([N]) from now, as predicted."""
    left, present = state.iterations.copy(), state.present & (state.iterations > 0)
    clock = np.asarray(seconds, float).copy()
    for _ in range(left.shape[1]):
        if not (clock > 0).any():
            break
        order = np.argsort(np.where(present, state.members, np.iinfo(np.int64).max), axis=1, kind="stable")
        at = np.arange(len(left))[:, None]
        rows = cache.rows(state.devices, state.members[at, order], present[at, order])
        step = np.empty_like(left)
        column = np.minimum(np.arange(left.shape[1]), cache.step_time_s.shape[1] - 1)
        step[at, order] = cache.step_time_s[rows[:, None], column]
        need = np.where(present, left * step, np.inf)
        period = np.minimum(need.min(axis=1, initial=np.inf), clock)
        done = present & (need <= (period * (1.0 + 1e-9))[:, None])
        left = np.where(present & ~done, left - period[:, None] / step, 0.0)
        present &= ~done
        clock = np.where(present.any(axis=1), clock - period, 0.0)
    return Candidates(state.devices, state.members, left, present, state.budgets)
