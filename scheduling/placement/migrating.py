"""Decides which running jobs move to empty GPUs, away from a neighbour or to a faster type, restart included."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from predictor.types import Floats
from scheduling.core.job import Allocation
from scheduling.core.set_cache import Ints
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, solo_step_s, usable_types
from scheduling.placement.packing import Tenancy

# A move must gain this many restarts beyond its own.
_MARGIN = 0.5
# With more shared GPUs than this, one that no job should leave for an empty GPU of some type is evaluated
# again only when its tenants change, or after a while.
_ALWAYS = 256
_REFRESH_S = 300.0

# (-gain in seconds, job number, GPU type, the job's first GPU, position on it); the most gainful one is the least.
_Move = tuple[float, int, int, int, int]


@dataclass(slots=True, eq=False)
class _LookedAt:
    """[T, G] stamp of each GPU, and time, when no job was to leave it for an empty GPU of a type.

    Attributes:
        revision: revision of the belief for which this holds.
    """

    stamp: Ints
    at_s: Floats
    revision: int = -1

    def stale(self, snapshot: SchedulingSnapshot, gpus: Ints, kinds: Ints, revision: int) -> Ints:
        """Those of `gpus` to be evaluated with empty GPUs of the types `kinds`; marks them as evaluated.

        What a job that is alone gains by moving only falls with time.
        """
        if self.revision != revision:
            self.stamp[:], self.revision = -1, revision
        recent = (self.at_s[kinds] >= snapshot.now_s - _REFRESH_S) | (snapshot.tenant_count == 1)
        known = ((self.stamp[kinds] == snapshot.stamp) & recent).all(axis=0)
        chosen = np.asarray(gpus[~known[gpus]], np.int64)
        at = np.ix_(kinds, chosen)
        self.stamp[at], self.at_s[at] = snapshot.stamp[chosen], snapshot.now_s
        return chosen


def migrate(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    pool: Pool,
    restart_s: float,
    joined: Collection[int] = (),
    makespan: bool = False,
) -> list[Allocation]:
    """Move jobs to empty GPUs of `pool`, the most gainful move first, while any move gains.

    Jobs that share a GPU may go anywhere, the others only to another type.

    Args:
        snapshot: the cluster.
        tenancy: its tenants.
        pool: its empty GPUs.
        restart_s: cost of a move for the job.
        joined: GPUs that other jobs join in this decision; they are left alone.
        makespan: the gain is the earlier end of the later of both GPUs, not the sum over jobs.
    """
    if not any(pool.free_of_type):
        return []
    kinds = np.flatnonzero(usable_types(snapshot, tenancy.cache) & np.array(pool.free_of_type, bool))
    if not kinds.size:
        return []
    movable = (snapshot.tenant_count > 1) & tenancy.shareable
    if len(snapshot.types) > 1:
        alone = snapshot.tenant_count == 1
        movable |= alone if len(kinds) > 1 else alone & (snapshot.type_of != kinds[0])
    movable[list(joined)] = False
    left = np.flatnonzero(movable)
    looked: _LookedAt | None = None
    if left.size > _ALWAYS:
        looked = snapshot.derived(
            ("migrating", tenancy.cache, makespan),
            lambda: _LookedAt(
                np.full((len(snapshot.types), len(snapshot)), -1, np.int64),
                np.zeros((len(snapshot.types), len(snapshot))),
            ),
        )
        left = looked.stale(snapshot, left, kinds, tenancy.cache.revision)
    if not left.size:
        return []
    shared = left[snapshot.tenant_count[left] > 1]
    moves = _moves_apart(snapshot, tenancy, pool, shared, restart_s, makespan) if shared.size else []
    moves += _moves_to_faster(snapshot, tenancy, pool, left[snapshot.tenant_count[left] == 1], restart_s)
    if looked is not None:
        # Jobs that would gain but find no GPU now, or have just been moved, are evaluated again.
        looked.stamp[:, [gpu for _, _, _, gpu, _ in moves]] = -1
        looked.stamp[:, left[(tenancy.resume_s[left] > snapshot.now_s).any(axis=1)]] = -1
    moved: list[Allocation] = []
    touched: set[int] = set()
    refused: set[tuple[int, int]] = set()
    for _, _, kind, gpu, column in sorted(moves):
        job = snapshot.tenants[gpu][column]
        if (len(job.gpus), kind) not in refused and touched.isdisjoint(job.gpus):
            gpus = pool.take(len(job.gpus), kind)
            if gpus:
                touched.update(job.gpus)
                moved.append(Allocation(job, gpus))
            else:
                refused.add((len(job.gpus), kind))
    return moved


def _moves_to_faster(
    snapshot: SchedulingSnapshot, tenancy: Tenancy, pool: Pool, gpus: Ints, restart_s: float
) -> list[_Move]:
    """Moves that gain enough, of jobs that are alone on `gpus`."""
    moves: list[_Move] = []
    for gpu in gpus.tolist():
        job = snapshot.tenants[gpu][0]
        if gpu != job.gpus[0] or not snapshot.movable(job):
            continue
        steps = solo_step_s(snapshot, tenancy.cache, job.job.workload)
        own = steps[snapshot.type_of[gpu]]
        for kind, step in enumerate(steps):
            if step < own and pool.free_of_type[kind]:
                gain = snapshot.left(job) * (own - step) - restart_s
                if gain > _MARGIN * restart_s:
                    moves.append((-gain, job.number, kind, gpu, 0))
    return moves


def _moves_apart(
    snapshot: SchedulingSnapshot, tenancy: Tenancy, pool: Pool, shared: Ints, restart_s: float, makespan: bool
) -> list[_Move]:
    """Moves that gain enough, of jobs that share one of the GPUs `shared`."""
    belief, state = tenancy.cache, tenancy.candidates(snapshot, shared)
    together = state.as_is(belief).finish_s
    moves: list[_Move] = []
    for column in range(state.present.shape[1]):
        rest = state.take(np.arange(len(shared)))
        rest.present[:, column] = False
        others = rest.as_is(belief).finish_s
        for row in np.flatnonzero(state.present[:, column]).tolist():
            job = snapshot.tenants[int(shared[row])][column]
            if not snapshot.movable(job):
                continue
            for kind, step in enumerate(solo_step_s(snapshot, belief, job.job.workload)):
                if not pool.free_of_type[kind] or not np.isfinite(step):
                    continue
                alone = float(state.iterations[row, column]) * step + restart_s
                if makespan:
                    gain = float(together[row].max()) - max(float(others[row].max()), alone)
                else:
                    gain = float(together[row].sum() - others[row].sum()) - alone
                if gain > _MARGIN * restart_s:
                    moves.append((-gain, job.number, kind, int(shared[row]), column))
    return moves
