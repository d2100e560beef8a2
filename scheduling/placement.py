"""Where one job goes on a cluster as it is: every GPU quantified in one batched call, then ranked, or wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats, SetPredictor
from profiling.errors import InfeasibleError, InputError
from profiling.workload import Workload
from scheduling.interference import Stages, stages
from scheduling.sets import Ints, SetCache, cache_of
from scheduling.snapshot import ClusterSnapshot, Gpu, Node, Tenant

OBJECTIVES = ("jct", "interference", "makespan")


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """How a GPU is chosen.

    Attributes:
        objective: `jct` the predicted increase of the sum of completion times, `interference` the multi-stage score,
            `makespan` the predicted time at which the GPU falls empty. The least wins.
        max_slowdown: largest predicted slowdown of any member that has no budget of its own.
        wait: whether waiting for a departure may be the answer when it is predicted to be better than any GPU now.
            Waiting always shows no interference, so the objective `interference` waits only for lack of room.
        max_members: largest co-location set.
        limit: how many GPUs the answer ranks.
        literal: the paper's score (contention instead of contention above 1).
        default_duration_s: how long a job of unknown length is taken to run alone on the fastest type present.
        gpus: a gang of so many: whole empty GPUs of one type, all at once, on as few nodes as possible.
    """

    objective: str = "jct"
    max_slowdown: float = 2.0
    wait: bool = True
    max_members: int = 4
    limit: int = 32
    literal: bool = False
    default_duration_s: float = 3600.0
    gpus: int = 1

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(
                "objective is not known", expected="one of " + ", ".join(OBJECTIVES), got=self.objective
            )
        if not self.max_slowdown >= 1:
            raise InputError(
                "max_slowdown is out of range", expected="a number from 1", got=self.max_slowdown
            )
        for name in ("max_members", "limit", "gpus"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} is out of range", expected="an integer from 1", got=getattr(self, name)
                )
        if not 0 < self.default_duration_s < float("inf"):
            raise InputError(
                "default_duration_s is out of range", expected="seconds above 0", got=self.default_duration_s
            )


@dataclass(frozen=True, slots=True)
class RankedGpu:
    """One GPU that can take the job now.

    Attributes:
        score: value of the objective; smaller is better.
        finish_s: predicted seconds until the job is done there.
        delays_s: predicted seconds by which each tenant is done later.
        reasons: the same in words.
        gang: (node, GPU) of every GPU of a gang, the first of which is `node` and `gpu`; empty for a single GPU.
    """

    node: str
    gpu: str
    score: float
    finish_s: float
    delays_s: dict[str, float]
    reasons: tuple[str, ...]
    gang: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The answer: `place` on the first of `ranked`, or `wait`, and why.

    Attributes:
        wait_s: on `wait`, predicted seconds until the departure that is worth waiting for.
    """

    decision: str
    ranked: tuple[RankedGpu, ...]
    reasons: tuple[str, ...] = ()
    wait_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `cotenant place --json` and `POST /v1/place`."""
        body: dict[str, Any] = {
            "decision": self.decision,
            "ranked": [
                {
                    "node": r.node,
                    "gpu": r.gpu,
                    "score": r.score,
                    "finish_s": r.finish_s,
                    "delays_s": r.delays_s,
                    "reasons": list(r.reasons),
                }
                | ({"gang": [{"node": n, "gpu": g} for n, g in r.gang]} if r.gang else {})
                for r in self.ranked
            ],
            "reasons": list(self.reasons),
        }
        if self.wait_s is not None:
            body["wait_s"] = self.wait_s
        return body


@dataclass(frozen=True, slots=True)
class Candidates:
    """N GPU states in numbers.

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

    def take(self, rows: NDArray[Any]) -> Candidates:
        return Candidates(
            self.devices[rows],
            self.members[rows],
            self.iterations[rows],
            self.present[rows],
            self.budgets[rows],
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a job would meet on each of N candidates.

    Attributes:
        score: [N] value of the objective; infinite where the job cannot go.
        cost_s: [N] finish plus delays, whatever the objective.
        finish_s: [N]; delays_s: [N, M]; slowdown: [N, M + 1], the job in the last column.
        fits: [N] memory; within_budget: [N]; has_room: [N] set size.
    """

    score: Floats
    cost_s: Floats
    finish_s: Floats
    delays_s: Floats
    slowdown: Floats
    fits: NDArray[np.bool_]
    within_budget: NDArray[np.bool_]
    has_room: NDArray[np.bool_]

    @property
    def feasible(self) -> NDArray[np.bool_]:
        return self.fits & self.within_budget & self.has_room


def rank(
    cache: SetCache,
    candidates: Candidates,
    workload: Ints | int,
    iterations: Floats | float,
    config: PlacementConfig,
    before: Stages | None = None,
) -> Ranking:
    """Quantify a job (or one job per candidate) on every candidate.

    Args:
        workload, iterations: of the job; scalars, or [N] for a different job on each candidate.
        before: outcome of the candidates without the job, when the caller has it already.
    """
    count = len(candidates.devices)
    members = np.column_stack([candidates.members, np.broadcast_to(np.asarray(workload, np.int64), count)])
    left = np.column_stack([candidates.iterations, np.broadcast_to(np.asarray(iterations, float), count)])
    present = np.column_stack([candidates.present, np.ones(count, bool)])
    newcomer = np.zeros_like(present)
    newcomer[:, -1] = True
    after = stages(cache, candidates.devices, members, left, present, newcomer, config.literal)
    if before is None:
        c, nobody = candidates, np.zeros_like(candidates.present)
        before = stages(cache, c.devices, c.members, c.iterations, c.present, nobody)
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
    budgets = np.column_stack([budgets, np.full(count, config.max_slowdown)])
    within = np.all(~present | (after.slowdown <= budgets), axis=1)
    room = candidates.present.sum(axis=1) < config.max_members
    score = np.where(after.fits & within & room, score, np.inf)
    return Ranking(score, cost, finish, delays, after.slowdown, after.fits, within, room)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The best departure to wait for, for each of J jobs: [J] score with the waiting in it (infinite where there is
    none that beats the bound), [J] seconds of waiting, [J] candidate or -1."""

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
    before: Stages | None = None,
) -> Waiting:
    """Place each job after 1, 2, ... departures of each candidate; only what can beat its bound is looked at.

    Args:
        workloads, iterations, bounds: [J] of the jobs; `bounds` is the best score without waiting.
        before: outcome of the candidates without the jobs, when the caller has it already.
    """
    jobs = len(workloads)
    best, wait_s, where = np.full(jobs, np.inf), np.zeros(jobs), np.full(jobs, -1, np.int64)
    rows = np.flatnonzero(candidates.present.any(axis=1))
    if not rows.size:
        return Waiting(best, wait_s, where)
    if before is None:
        c, nobody = candidates, np.zeros_like(candidates.present)
        before = stages(cache, c.devices, c.members, c.iterations, c.present, nobody)
    state, gone = candidates.take(rows), before.finish_s[rows]
    leave = np.sort(np.where(state.present, gone, np.inf), axis=1)
    alone = iterations[:, None] * np.stack([_solo_step_s(cache, state.devices, int(w)) for w in workloads])
    for departures in range(leave.shape[1]):
        wait = leave[:, departures]
        least = wait[None, :] + alone  # nothing is done sooner than alone
        job, row = np.nonzero(np.isfinite(wait)[None, :] & (least < np.minimum(bounds, best)[:, None]))
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
    rows = [cache.solo(int(d), workload) for d in unique]  # first: it may grow the cache's arrays
    return cache.step_time_s[rows, 0][back]


def _advance(cache: SetCache, state: Candidates, seconds: Floats) -> Candidates:
    """The candidates `seconds` ([N]) from now, as predicted."""
    left, present = state.iterations.copy(), state.present.copy()
    clock = np.asarray(seconds, float).copy()
    for _ in range(left.shape[1]):
        if not (clock > 0).any():
            break
        order = np.argsort(np.where(present, state.members, np.iinfo(np.int64).max), axis=1, kind="stable")
        at = np.arange(len(left))[:, None]
        with cache.lock:
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


@dataclass(slots=True)
class _Grouped:
    """The distinct GPU states of a snapshot and which GPUs are in each."""

    snapshot: ClusterSnapshot
    cache: SetCache
    places: list[tuple[Node, Gpu]] = field(default_factory=list)
    group: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    states: list[Gpu] = field(default_factory=list)
    candidates: Candidates | None = None
    before: Stages | None = None


_LAST: list[_Grouped] = []  # the grouping of the last snapshot: a stream of jobs asks about the same one


def _group(snapshot: ClusterSnapshot, cache: SetCache) -> _Grouped:
    if _LAST and _LAST[0].snapshot is snapshot and _LAST[0].cache is cache:
        return _LAST[0]
    grouped = _Grouped(snapshot, cache)
    by_object: dict[int, int] = {}
    by_value: dict[Any, int] = {}
    numbers: list[int] = []
    for node, gpu in snapshot.gpus():
        number = by_object.get(id(gpu))
        if number is None:
            key = (gpu.device, gpu.sharing, gpu.tenants)
            number = by_value.setdefault(key, len(grouped.states))
            if number == len(grouped.states):
                grouped.states.append(gpu)
            by_object[id(gpu)] = number
        grouped.places.append((node, gpu))
        numbers.append(number)
    grouped.group = np.array(numbers, np.int64)
    grouped.candidates = c = Candidates.of(cache, grouped.states)
    nobody = np.zeros_like(c.present)
    grouped.before = stages(cache, c.devices, c.members, c.iterations, c.present, nobody)
    _LAST[:] = [grouped]
    return grouped


def place(
    job: Workload,
    iterations: float | None,
    snapshot: ClusterSnapshot,
    predictor: SetPredictor | SetCache,
    config: PlacementConfig | None = None,
) -> PlacementDecision:
    """Choose a GPU for `job`, or say that it should wait.

    Args:
        iterations: steps that the job will run; None where nobody knows (see `default_duration_s`).
        snapshot: nodes, GPUs and tenants as they are.
        predictor: asked for each distinct set once; a `SetCache` of it may be given instead.

    Raises:
        InputError: the cluster has no GPU, or `iterations` is not above 0.
        InfeasibleError: the job does not fit on any GPU type of the cluster even when it is alone.
        UnknownNameError: the predictor does not know a device or model.
    """
    config = config or PlacementConfig()
    if iterations is not None and not 0 < iterations < float("inf"):
        raise InputError("iterations is out of range", expected="a number above 0", got=iterations)
    cache = cache_of(predictor)
    grouped = _group(snapshot, cache)
    candidates = grouped.candidates
    if not grouped.places or candidates is None:
        raise InputError(
            "the cluster has no GPU",
            expected="at least one node with one GPU",
            got=f"{len(snapshot.nodes)} nodes",
        )
    workload = cache.workload_id(job)
    types = {d: cache.solo(d, workload) for d in np.unique(candidates.devices).tolist()}
    if not any(cache.fits[row] for row in types.values()):
        need = ", ".join(
            f"{cache.devices[d][0]}: {cache.memory_upper_bytes[row] / 2**30:.1f} GiB"
            for d, row in types.items()
        )
        raise InfeasibleError(
            f"{job} does not fit on any GPU of this cluster even when it is alone (predicted upper bound of its memory {need})",
            hint="lower the batch size, or add a GPU type with more memory",
        )
    notes: list[str] = []
    if iterations is None:
        fastest = min(float(cache.step_time_s[row, 0]) for row in types.values() if cache.fits[row])
        iterations = config.default_duration_s / fastest
        notes.append(
            f"length unknown: taken as {iterations:.0f} steps ({config.default_duration_s:.0f} s alone on the fastest type)"
        )
    if config.gpus > 1:
        return _place_gang(snapshot, cache, workload, iterations, config, notes)
    ranking = rank(cache, candidates, workload, iterations, config, grouped.before)
    score = ranking.score[grouped.group]
    order = np.lexsort((ranking.cost_s[grouped.group], score))[: config.limit]
    order = order[np.isfinite(score[order])]
    ranked = tuple(_ranked(grouped, ranking, int(i), config) for i in order)
    best = ranked[0].score if ranked else np.inf
    if not ranked or (config.wait and config.objective != "interference"):
        waiting = best_wait(
            cache,
            candidates,
            np.array([workload]),
            np.array([iterations]),
            config,
            np.array([best]),
            grouped.before,
        )
        if waiting.candidate[0] >= 0:
            waited, wait_s = float(waiting.score[0]), float(waiting.wait_s[0])
            where = grouped.places[int(np.flatnonzero(grouped.group == waiting.candidate[0])[0])]
            why = (
                f"waiting {wait_s:.0f} s for a departure on {where[0].name}/{where[1].id} is predicted better: "
                f"score {waited:.0f} against {best:.0f} now"
                if ranked
                else f"no GPU can take it now; {where[0].name}/{where[1].id} can in {wait_s:.0f} s"
            )
            return PlacementDecision(
                "wait", ranked, (*notes, why, *_refusals(ranking, grouped.group)), wait_s
            )
    if not ranked:
        return PlacementDecision("wait", (), (*notes, *_refusals(ranking, grouped.group)))
    return PlacementDecision("place", ranked, (*notes, *_refusals(ranking, grouped.group)))


def _place_gang(
    snapshot: ClusterSnapshot,
    cache: SetCache,
    workload: int,
    iterations: float,
    config: PlacementConfig,
    notes: list[str],
) -> PlacementDecision:
    """Whole empty GPUs of one type, the fastest type first; wait where no type has enough of them empty."""
    from scheduling.policies.gangs import Pool, solo_step_s
    from scheduling.simulator.state import SchedulingSnapshot

    state = SchedulingSnapshot(snapshot)
    steps = solo_step_s(state, cache, cache.workloads[workload])
    able = [k for k, step in enumerate(steps) if np.isfinite(step) and state.type_size[k] >= config.gpus]
    if not able:
        raise InfeasibleError(
            f"no GPU type of this cluster has {config.gpus} GPUs that the job fits on",
            expected=f"at most {int(state.type_size.max())} GPUs",
            got=config.gpus,
        )
    ranked = []
    for kind in sorted(able, key=steps.__getitem__):
        gpus = Pool(state).take(config.gpus, kind)
        if gpus:
            gang = tuple(state.names[g] for g in gpus)
            finish, nodes = iterations * steps[kind], len({node for node, _ in gang})
            reasons = (
                f"done in {finish:.0f} s",
                f"{config.gpus} empty {state.types[kind]} on {nodes} node{'s' if nodes > 1 else ''}",
            )
            score = 0.0 if config.objective == "interference" else finish
            ranked.append(RankedGpu(*gang[0], score, finish, {}, reasons, gang))
    if ranked:
        return PlacementDecision("place", tuple(ranked), tuple(notes))
    free = ", ".join(f"{state.types[k]}: {state.free_of_type[k]}" for k in able)
    return PlacementDecision(
        "wait", (), (*notes, f"a gang needs {config.gpus} empty GPUs of one type ({free})")
    )


def tenant_names(tenants: Sequence[Tenant]) -> list[str]:
    """Names of tenants in an answer: job id, else SPEC; a repeated one gets `#2`, `#3`, ..."""
    names: list[str] = []
    for tenant in tenants:
        base = tenant.job_id or str(tenant.job)
        name, number = base, 2
        while name in names:
            name, number = f"{base}#{number}", number + 1
        names.append(name)
    return names


def _ranked(grouped: _Grouped, ranking: Ranking, index: int, config: PlacementConfig) -> RankedGpu:
    node, gpu = grouped.places[index]
    row = int(grouped.group[index])
    names = tenant_names(gpu.tenants)
    delays = {name: float(ranking.delays_s[row, k]) for k, name in enumerate(names)}
    own = float(ranking.slowdown[row, -1])
    reasons = [f"done in {ranking.finish_s[row]:.0f} s"]
    if not names:
        reasons.append(f"{gpu.device} is empty")
    else:
        reasons.append(f"slowed {own:.2f} times beside {len(names)} on {gpu.device}")
        reasons.extend(
            f"delays {name} by {delays[name]:.0f} s (slowed {ranking.slowdown[row, k]:.2f} times)"
            for k, name in enumerate(names)
        )
    return RankedGpu(
        node.name, gpu.id, float(ranking.score[row]), float(ranking.finish_s[row]), delays, tuple(reasons)
    )


def _refusals(ranking: Ranking, group: Ints) -> list[str]:
    """How many GPUs were refused, by the first reason that holds."""
    room = ~ranking.has_room[group]
    memory = ranking.has_room[group] & ~ranking.fits[group]
    budget = ranking.has_room[group] & ranking.fits[group] & ~ranking.within_budget[group]
    texts = (
        (room, "already hold as many jobs as may share one"),
        (memory, "refused on memory (predicted upper bound over the device's)"),
        (budget, "refused on a member's slowdown budget"),
    )
    return [
        f"{int(mask.sum())} GPU{'s' if mask.sum() != 1 else ''} {text}" for mask, text in texts if mask.any()
    ]
