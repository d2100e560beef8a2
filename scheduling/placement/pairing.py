"""Evaluates every job of a batch on every shared GPU in one call.

On a large cluster, only what has changed is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.packing import Tenancy
from scheduling.placement.ranking import Candidates, PlacementConfig, Ranking, rank
from scheduling.placement.stages import Stages

# Up to this many (job, GPU) pairs are always evaluated; beyond, a refused pair is evaluated again after a
# while, or when the length of the queue has changed by `_REFRESH_RATIO`.
_ALWAYS = 4096
_REFRESH_S = 300.0
_REFRESH_RATIO = 0.2


@dataclass(frozen=True, slots=True)
class Pairs:
    """J jobs on N shared GPUs.

    Attributes:
        score: [J, N] value of the objective, infinite where the job cannot go; cost_s: finish plus delays.
        extension_s: [J, N] how much longer the GPU is busy.
        after_s: [J, N, M + 1] seconds until each member is done, the job in the last column; 0 where there is
            none.
        before_s: [J, N, M] the same for the tenants without the job.
    """

    score: Floats
    cost_s: Floats
    extension_s: Floats
    after_s: Floats
    before_s: Floats

    @classmethod
    def none(cls, jobs: int, gpus: int) -> Pairs:
        """No job can go anywhere."""
        shape = (jobs, gpus)
        never = np.full(shape, np.inf)
        return cls(never, never.copy(), np.zeros(shape), np.zeros((*shape, 1)), np.zeros((*shape, 0)))

    def late_s(self, end_s: float) -> Floats:
        """[J, N] time beyond `end_s` that the members need because of the job, summed."""
        after, before = np.maximum(self.after_s - end_s, 0.0), np.maximum(self.before_s - end_s, 0.0)
        return np.asarray(after.sum(axis=2) - before.sum(axis=2), float)


def every_pair(cache: SetCache, state: Candidates, ids: Ints, left: Floats, config: PlacementConfig) -> Pairs:
    """Evaluate J jobs ([J] workload numbers and iterations left) on N candidates."""
    count, jobs = len(state.devices), len(ids)
    if not count or not jobs:
        return Pairs.none(jobs, count)
    ranking, without = _ranked(
        cache, state, np.tile(np.arange(count), jobs), np.repeat(ids, count), np.repeat(left, count), config
    )
    after = np.column_stack([without.finish_s + ranking.delays_s, ranking.finish_s])
    shape = (jobs, count)
    return Pairs(
        ranking.score.reshape(shape),
        ranking.cost_s.reshape(shape),
        ranking.extension_s.reshape(shape),
        after.reshape(*shape, -1),
        without.finish_s.reshape(*shape, -1),
    )


def _ranked(
    cache: SetCache, state: Candidates, at: Ints, ids: Ints, left: Floats, config: PlacementConfig
) -> tuple[Ranking, Stages]:
    """P jobs ([P] workload numbers and iterations left), each on candidate `at` [P]; and [P] without it."""
    without = state.as_is(cache).take(at)
    return rank(cache, state.take(at), ids, left, config, without), without


@dataclass(slots=True, eq=False)
class _LookedAt:
    """What was evaluated recently.

    Attributes:
        stamp: [G] of the GPUs offered in the last call; -1 for the others.
        changed: [G] number of the last call that found a GPU changed, or offered again.
        jobs: by job number, the last call that looked at it; before: the same when the decision began.
        moment: time and sum of stamps in the last call, by which decisions are told apart.
        calls: number of calls so far.
        at_s, count, revision: time, length of the queue and revision of the cache when `jobs` was last emptied.
    """

    stamp: Ints
    changed: Ints
    jobs: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    moment: tuple[float, int] = (-np.inf, 0)
    calls: int = 0
    at_s: float = -np.inf
    count: int = 0
    revision: int = -1

    @classmethod
    def nothing(cls, gpus: int) -> _LookedAt:
        """Nothing was evaluated yet."""
        return cls(np.full(gpus, -1, np.int64), np.zeros(gpus, np.int64))

    def stale(self, snapshot: SchedulingSnapshot, shared: Ints, numbers: Sequence[int]) -> NDArray[np.bool_]:
        """[J, N] which pairs of these jobs and GPUs are to be evaluated now; from then on they count as looked at.

        A job that was not among `numbers` for a while has not seen what changed meanwhile. Within a decision, of
        which there may be several proposals, a call looks at what the calls before it have looked at.
        """
        moment = _moment(snapshot)
        if moment != self.moment:
            self.moment, self.before = moment, dict(self.jobs)
        self.calls += 1
        self.changed[shared[self.stamp[shared] != snapshot.stamp[shared]]] = self.calls
        self.stamp[:] = -1
        self.stamp[shared] = snapshot.stamp[shared]
        last = np.array([self.before.get(number, 0) for number in numbers])
        self.jobs.update(dict.fromkeys(numbers, self.calls))
        return np.asarray(self.changed[shared] > last[:, None], bool)

    def again(self, snapshot: SchedulingSnapshot, numbers: Iterable[int], gpus: Iterable[int]) -> None:
        """Count this decision's look at these jobs, and any look at these GPUs, as not taken."""
        if _moment(snapshot) != self.moment:  # it has evaluated every pair
            return
        for number in numbers:
            if number in self.before:
                self.jobs[number] = self.before[number]
            else:
                self.jobs.pop(number, None)
        self.stamp[list(gpus)] = -1


def offers(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    shared: Ints,
    jobs: Sequence[JobState],
    config: PlacementConfig,
) -> Pairs:
    """Evaluate `jobs` on the `shared` GPUs.

    With the objective `jct` on a large cluster, a pair refused recently counts as refused until the GPU's
    tenants change, the queue's length changes by a fifth, or five minutes have passed; members' times are
    omitted then. A pair that was not refused, but belongs to a discarded decision, is offered again after
    `offer_again`.
    """
    pairs = Pairs.none(len(jobs), len(shared))
    if not shared.size:
        return pairs
    cache, count = tenancy.cache, len(snapshot.waiting)
    ids = np.array([cache.workload_id(j.job.workload) for j in jobs])
    left = np.array([snapshot.left(j) for j in jobs])
    if config.objective != "jct" or pairs.score.size <= _ALWAYS:
        return every_pair(cache, tenancy.candidates(snapshot, shared), ids, left, config)
    looked = _looked_at(snapshot, cache, config)
    if (
        snapshot.now_s >= looked.at_s + _REFRESH_S
        or abs(count - looked.count) > _REFRESH_RATIO * looked.count
        or cache.revision != looked.revision
    ):
        looked.jobs, looked.before = {}, {}
        looked.at_s, looked.count, looked.revision = snapshot.now_s, count, cache.revision
    rows, columns = np.nonzero(looked.stale(snapshot, shared, [j.number for j in jobs]))
    if rows.size:
        used, at = np.unique(columns, return_inverse=True)
        state = tenancy.candidates(snapshot, shared[used])
        ranking, _ = _ranked(cache, state, at, ids[rows], left[rows], config)
        pairs.score[rows, columns], pairs.cost_s[rows, columns] = ranking.score, ranking.cost_s
        pairs.extension_s[rows, columns] = ranking.extension_s
    return pairs


def offer_again(
    snapshot: SchedulingSnapshot, cache: SetCache, config: PlacementConfig, discarded: Sequence[Allocation]
) -> None:
    """Offer again what a decision has discarded: its jobs as before it, and its GPUs to every job.

    Otherwise, what it had accepted would count as refused, and so would its GPUs for the jobs that found them taken.

    Args:
        discarded: starts that were proposed, but are not carried out.
    """
    gpus = {gpu for allocation in discarded for gpu in allocation.gpus}
    _looked_at(snapshot, cache, config).again(snapshot, (a.job.number for a in discarded), gpus)


def _looked_at(snapshot: SchedulingSnapshot, cache: SetCache, config: PlacementConfig) -> _LookedAt:
    return snapshot.derived(("looked at", cache, config), lambda: _LookedAt.nothing(len(snapshot)))


def _moment(snapshot: SchedulingSnapshot) -> tuple[float, int]:
    """The same for all proposals of a decision."""
    return snapshot.now_s, int(snapshot.stamp.sum())
