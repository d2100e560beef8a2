"""Where one job goes on a cluster as it is: every GPU quantified in one batched call, then ranked, or wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from predictor.types import Floats, SetPredictor
from profiling.devices import runs_on
from profiling.errors import InfeasibleError, InputError
from profiling.workload import Workload
from scheduling.core.set_cache import Ints, SetCache, cache_of
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.placement.ranking import Candidates, PlacementConfig, Ranking, best_wait, rank
from scheduling.placement.stages import Stages, stages


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
    kinds = np.unique(candidates.devices)
    types = dict(zip(kinds.tolist(), cache.solos(kinds, workload).tolist(), strict=True))
    if not any(cache.fits[row] for row in types.values()):
        names = {cache.devices[d][0]: row for d, row in types.items()}
        able = {name: row for name, row in names.items() if runs_on(name, job.precision)}
        if not able:
            raise InfeasibleError(
                f"no GPU of this cluster has {job.precision.upper()} ({', '.join(names)})",
                hint="choose another precision, or add a GPU type that has it",
            )
        need = ", ".join(
            f"{name}: {cache.memory_upper_bytes[row] / 2**30:.1f} GiB" for name, row in able.items()
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
    order = _first(score, ranking.cost_s[grouped.group], config.limit)
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


def _first(score: Floats, cost_s: Floats, limit: int) -> Ints:
    """The `limit` least finite scores, of equal ones the least cost: only those that can be among them are sorted."""
    last = np.partition(score, limit - 1)[limit - 1] if limit < len(score) else np.inf
    among = np.flatnonzero(np.isfinite(score) & (score <= last))
    return among[np.lexsort((cost_s[among], score[among]))][:limit]


def _place_gang(
    snapshot: ClusterSnapshot,
    cache: SetCache,
    workload: int,
    iterations: float,
    config: PlacementConfig,
    notes: list[str],
) -> PlacementDecision:
    """Whole empty GPUs of one type, the fastest type first; wait where no type has enough of them empty."""
    from scheduling.core.state import SchedulingSnapshot
    from scheduling.placement.gangs import Pool, solo_step_s

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
        (
            memory,
            "refused on memory (predicted upper bound over the device's) or for a precision that they lack",
        ),
        (budget, "refused on a member's slowdown budget"),
    )
    return [
        f"{int(mask.sum())} GPU{'s' if mask.sum() != 1 else ''} {text}" for mask, text in texts if mask.any()
    ]
