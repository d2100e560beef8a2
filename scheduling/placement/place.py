"""Placement of one job on the current cluster.

All GPUs are evaluated in one batched call, then ranked; the answer may also be to wait.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from predictor.answering.never_measured import never_measured
from predictor.types import Floats, SetPredictor
from profiling.devices import get_device, is_known, runs_on
from profiling.errors import InfeasibleError
from profiling.workload import ColocationSet, Workload
from scheduling.core.limits import check_iterations, unknown_steps
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.decision import PlacementDecision, RankedGpu, tenant_names
from scheduling.placement.gangs import Pool, solo_step_s
from scheduling.placement.grouping import GroupedGpus
from scheduling.placement.ranking import PlacementConfig, Ranking, best_wait, rank_possible


class Placer:
    """Placement decisions with one predictor.

    It keeps the grouping of the last snapshot, because a stream of jobs queries the same snapshot or a later
    one. The grouping belongs to the `Placer` alone and is dropped with it. Not safe for concurrent calls.

    Args:
        predictor: queried once for each distinct set; its `SetCache` may be given instead.
    """

    def __init__(self, predictor: SetPredictor | SetCache) -> None:
        self.cache = SetCache.of(predictor)
        self._last: GroupedGpus | None = None

    def place(
        self,
        job: Workload,
        iterations: float | None,
        snapshot: ClusterSnapshot,
        config: PlacementConfig = PlacementConfig(),
    ) -> PlacementDecision:
        """Choose a GPU for `job`, or state that it should wait.

        Args:
            job: the job.
            iterations: steps that the job will run; None if unknown (see `default_duration_s`).
            snapshot: current nodes, GPUs and tenants.
            config: configuration of the ranking.

        Raises:
            InputError: the cluster has no GPU, or `iterations` is out of range.
            InfeasibleError: the job fits on no GPU type of the cluster, even alone.
            UnknownNameError: the predictor does not know a device or model.
        """
        decision = self._decide(job, iterations, snapshot, config)
        never = never_measured(self.cache.predictor, _best_set(decision, snapshot, job))
        return replace(decision, never_measured=tuple(never))

    def _decide(
        self, job: Workload, iterations: float | None, snapshot: ClusterSnapshot, config: PlacementConfig
    ) -> PlacementDecision:
        """The decision without what was never measured; raises like `place`."""
        grouped, workload, iterations, notes = self._asked(job, iterations, snapshot, config)
        if config.gpus > 1:
            decision = _place_gang(snapshot, self.cache, workload, iterations, config, notes)
        else:
            decision = self._decided(grouped, workload, iterations, config, notes)
        return replace(decision, iterations=iterations)

    def scores(
        self,
        job: Workload,
        iterations: float | None,
        snapshot: ClusterSnapshot,
        config: PlacementConfig = PlacementConfig(),
    ) -> Floats:
        """[G] score of every GPU in the snapshot's order, as in `place`; infinite where `job` cannot go now.

        For callers that need no reasons, which cost most of a decision on many GPUs. Arguments and errors are those
        of `place`.
        """
        grouped, workload, iterations, _ = self._asked(job, iterations, snapshot, config)
        ranking = rank_possible(self.cache, grouped.candidates, workload, iterations, config, grouped.without)
        scores: Floats = ranking.score[grouped.state_of]
        return scores

    def _asked(
        self, job: Workload, iterations: float | None, snapshot: ClusterSnapshot, config: PlacementConfig
    ) -> tuple[GroupedGpus, int, float, list[str]]:
        """The grouped GPUs, the job's number, its steps and notes on them; raises like `place`."""
        if iterations is not None:
            check_iterations("iterations", iterations)
        cache, grouped = self.cache, self._grouped(snapshot)
        workload = cache.workload_id(job)
        devices = np.flatnonzero(np.bincount(grouped.candidates.devices))
        alone = dict(zip(devices.tolist(), cache.solos(devices, workload).tolist(), strict=True))
        fitting = [row for row in alone.values() if cache.fits[row]]
        if not fitting:
            raise _infeasible(job, cache, alone)
        notes: list[str] = []
        if iterations is None:
            fastest = min(float(cache.step_time_s[row, 0]) for row in fitting)
            iterations = unknown_steps(fastest, config.default_duration_s)
            notes.append(
                f"length unknown: assuming {iterations:.0f} steps ({config.default_duration_s:.0f} s alone "
                f"on the fastest type)"
            )
        return grouped, workload, float(iterations), notes

    def _decided(
        self,
        grouped: GroupedGpus,
        workload: int,
        iterations: float,
        config: PlacementConfig,
        notes: list[str],
    ) -> PlacementDecision:
        """The ranking of single GPUs, or wait."""
        cache = self.cache
        ranking = rank_possible(cache, grouped.candidates, workload, iterations, config, grouped.without)
        count_of = np.bincount(grouped.state_of, minlength=len(ranking.score))
        has_share = cache.workloads[workload].sm_share_ratio < 1
        tenants = grouped.candidates.present.sum(axis=1)
        order = _first(ranking.score, ranking.cost_s, tenants, grouped.state_of, count_of, config.limit)
        ranked = tuple(_ranked(grouped, ranking, int(i), has_share) for i in order)
        refusals = _refusals(ranking, count_of, self._too_slow(grouped, workload), config)
        best = ranked[0].score if ranked else np.inf
        if not ranked or (config.wait and config.objective != "interference"):
            waiting = best_wait(
                cache,
                grouped.candidates,
                np.array([workload]),
                np.array([iterations]),
                config,
                np.array([best]),
                grouped.without,
            )
            state = int(waiting.candidate[0])
            if state >= 0:
                wait_s = float(waiting.wait_s[0])
                node, gpu = grouped.places[int(np.argmax(grouped.state_of == state))]
                why = (
                    f"waiting {wait_s:.0f} s for a departure on {node.name}/{gpu.id} is predicted better: "
                    f"score {waiting.score[0]:.0f} against {best:.0f} now"
                    if ranked
                    else f"no GPU can take it now; {node.name}/{gpu.id} can in {wait_s:.0f} s"
                )
                return PlacementDecision("wait", ranked, (*notes, why, *refusals), wait_s)
        return PlacementDecision("place" if ranked else "wait", ranked, (*notes, *refusals))

    def _too_slow(self, grouped: GroupedGpus, workload: int) -> dict[str, NDArray[np.bool_]]:
        """The GPU types too slow for the job, each with [S] which states are on one."""
        cache, devices = self.cache, grouped.candidates.devices
        job, names = cache.workloads[workload], [name for name, _ in cache.devices]
        slow = dict.fromkeys(name for name in names if (name, job) in cache.too_slow)
        return {name: np.array([n == name for n in names])[devices] for name in slow}

    def _grouped(self, snapshot: ClusterSnapshot) -> GroupedGpus:
        last, self._last = self._last, None  # if the predictor fails half-way, nothing is kept
        if last is None or not last.follow(snapshot):
            last = GroupedGpus(snapshot, self.cache)
        self._last = last
        return last


def place(
    job: Workload,
    iterations: float | None,
    snapshot: ClusterSnapshot,
    predictor: SetPredictor | SetCache,
    config: PlacementConfig = PlacementConfig(),
) -> PlacementDecision:
    """Make one decision, see `Placer.place`; for a stream of jobs, keep a `Placer`."""
    return Placer(predictor).place(job, iterations, snapshot, config)


def _best_set(decision: PlacementDecision, snapshot: ClusterSnapshot, job: Workload) -> list[ColocationSet]:
    """The job beside the tenants of the best GPU; empty if no GPU can take it now."""
    if not decision.ranked:
        return []
    best = decision.ranked[0]
    node = next(node for node in snapshot.nodes if node.name == best.node)
    gpu = next(gpu for gpu in node.gpus if gpu.id == best.gpu)
    return [ColocationSet(gpu.device, (*(tenant.job for tenant in gpu.tenants), job), gpu.sharing)]


def _infeasible(job: Workload, cache: SetCache, alone: dict[int, int]) -> InfeasibleError:
    """Error that states why `job` fits on none of the device types; `alone` has its solo rows."""
    names = {cache.devices[d][0]: row for d, row in alone.items()}
    able = {name: row for name, row in names.items() if runs_on(name, job.precision)}
    if not able:
        return InfeasibleError(
            f"no GPU of this cluster has {job.precision.upper()} ({', '.join(names)})",
            hint="choose another precision, or add a GPU type that supports it",
        )
    slow = [name for name in able if (name, job) in cache.too_slow]
    able = {name: row for name, row in able.items() if name not in slow}
    if not able:
        return InfeasibleError(
            f"a step of {job} would take more than two weeks on every GPU of this cluster ({', '.join(slow)})",
            hint="lower its batch size or gradient accumulation, or add a faster GPU type",
        )
    need = ", ".join(
        f"{name}: {_need(name, float(cache.memory_upper_bytes[row]))}" for name, row in able.items()
    )
    return InfeasibleError(
        f"{job} does not fit on any GPU of this cluster, even alone (upper bound of predicted memory: {need})",
        hint="lower the batch size, or add a GPU type with more memory",
    )


def _need(name: str, upper_bytes: float) -> str:
    ran_out = is_known(name) and upper_bytes == get_device(name).memory_bytes
    return "ran out of it" if ran_out else f"{upper_bytes / 2**30:.1f} GiB"


def _first(score: Floats, cost_s: Floats, tenants: Ints, state_of: Ints, count_of: Ints, limit: int) -> Ints:
    """The `limit` GPUs with the lowest finite scores; ties go to the lowest cost, then to the fewest tenants.

    Only states that can be among them are sorted.

    Args:
        score, cost_s, tenants: [S] of the states.
        state_of: [G] state of each GPU.
        count_of: [S] number of GPUs in each state.
        limit: number of GPUs.
    """
    score = np.where(count_of > 0, score, np.inf)
    last = np.partition(score, limit - 1)[limit - 1] if limit < len(score) else np.inf
    states = np.flatnonzero(np.isfinite(score) & (score <= last))
    states = states[np.lexsort((tenants[states], cost_s[states], score[states]))]
    enough = int(np.searchsorted(np.cumsum(count_of[states]), limit)) + 1
    if enough < len(states):  # keep ties with the last one, which are decided by the GPUs' order
        end = states[enough - 1]
        same = score[states] == score[end]
        same &= (cost_s[states] == cost_s[end]) & (tenants[states] == tenants[end])
        states = states[: max(enough, int(np.flatnonzero(same)[-1]) + 1)]
    chosen = np.zeros(len(score), bool)
    chosen[states] = True
    among = np.flatnonzero(chosen[state_of])
    of = state_of[among]
    return among[np.lexsort((tenants[of], cost_s[of], score[of]))][:limit]


def _place_gang(
    snapshot: ClusterSnapshot,
    cache: SetCache,
    workload: int,
    iterations: float,
    config: PlacementConfig,
    notes: list[str],
) -> PlacementDecision:
    """Place a gang on whole empty GPUs of one type, the fastest type first.

    Wait if no type has enough empty ones.
    """
    state = SchedulingSnapshot(snapshot)
    steps = solo_step_s(state, cache, cache.workloads[workload])
    able = [k for k, step in enumerate(steps) if np.isfinite(step) and state.type_size[k] >= config.gpus]
    if not able:
        most = int(state.type_size[np.isfinite(steps)].max())
        raise InfeasibleError(
            f"no GPU type of this cluster has {config.gpus} GPUs that the job fits on",
            expected=f"at most {most} GPUs",
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
    free = ", ".join(_room(state, k, config.gpus) for k in able)
    return PlacementDecision(
        "wait", (), (*notes, f"a gang needs {config.gpus} empty GPUs of one type ({free})")
    )


def _room(state: SchedulingSnapshot, kind: int, gpus: int) -> str:
    """Empty GPUs of a type that has no room for a gang: on one node, where it would go if one is large enough."""
    nodes = state.nodes_of_type[kind]
    if state.node_size[nodes].max() < gpus:
        return f"{state.types[kind]}: {state.free_of_type[kind]}"
    return f"{state.types[kind]}: {state.free[nodes].max()} on one node"


def _ranked(grouped: GroupedGpus, ranking: Ranking, index: int, has_share: bool) -> RankedGpu:
    node, gpu = grouped.places[index]
    row = int(grouped.state_of[index])
    names = tenant_names(gpu.tenants)
    delays = {name: float(ranking.delays_s[row, k]) for k, name in enumerate(names)}
    own = float(ranking.slowdown[row, -1])
    reasons = [f"done in {ranking.finish_s[row]:.0f} s"]
    if not names:
        reasons.append(f"{gpu.device} is empty")
    else:
        others = f"{len(names)} {'job' if len(names) == 1 else 'jobs'}"
        reasons.append(f"{own:.2f}x slowdown beside {others} on {gpu.device}")
        reasons.extend(
            f"delays {name} by {delays[name]:.0f} s ({ranking.slowdown[row, k]:.2f}x slowdown)"
            for k, name in enumerate(names)
        )
    if has_share and gpu.sharing != "mps":
        reasons.append("its sm_share_ratio is taken as enforced, which only MPS does")
    elif has_share and is_known(gpu.device) and not get_device(gpu.device).has_mps_shares:
        reasons.append("its sm_share_ratio is taken as enforced, which MPS does only from Volta on")
    return RankedGpu(
        node.name, gpu.id, float(ranking.score[row]), float(ranking.finish_s[row]), delays, tuple(reasons)
    )


def _refusals(
    ranking: Ranking, count_of: Ints, too_slow: dict[str, NDArray[np.bool_]], config: PlacementConfig
) -> list[str]:
    """Number of refused GPUs by first applicable reason.

    Args:
        count_of: number of GPUs in each state.
        too_slow: GPU types too slow for the job, each with [S] the states on one.
        config: configuration of the ranking.
    """
    slow = np.any([np.zeros_like(ranking.fits), *too_slow.values()], axis=0)
    room = ~slow & ~ranking.has_room
    memory = ~slow & ranking.has_room & ~ranking.fits
    budget = ranking.has_room & ranking.fits & ~ranking.within_budget
    least = ranking.worst_slowdown[budget & (count_of > 0)].min(initial=np.inf)
    limits = f"{config.max_slowdown:.4g} unless it has its own; the worst-off member is slowed {least:.2f}x or more"
    large = "exceeds the device's, or the set ran out of it"
    texts = (
        *(
            (mask, f"refused: a step would take more than two weeks on {name}")
            for name, mask in too_slow.items()
        ),
        (room, f"refused: already has {config.max_members} jobs, the most on one GPU"),
        (
            memory,
            f"refused: predicted memory (upper bound) {large}, or no such precision or MIG slices",
        ),
        (budget, f"refused: a member would exceed its slowdown budget ({limits})"),
    )
    numbers = [(int(count_of[mask].sum()), text) for mask, text in texts]
    return [f"{number} GPU{'s' if number != 1 else ''} {text}" for number, text in numbers if number]
