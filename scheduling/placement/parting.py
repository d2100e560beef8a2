"""Decides which running jobs move to empty GPUs, away from a neighbour or to a faster type, restart included."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from predictor.types import Floats
from scheduling.core.job import Allocation
from scheduling.core.set_cache import Ints
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, solo_step_s
from scheduling.placement.packing import Tenancy
from scheduling.placement.stages import stages

# A move must gain this many restarts beyond its own.
_MARGIN = 0.5
# With more shared GPUs than this, one that no job should leave for an empty GPU of some type is evaluated
# again only when its tenants change, or after a while.
_ALWAYS = 256
_REFRESH_S = 300.0


@dataclass(slots=True, eq=False)
class _LookedAt:
    """[T, G] stamp of each GPU, and time, when no job was to leave it for an empty GPU of a type.

    Attributes:
        revision: revision of the belief for which this holds.
    """

    stamp: Ints
    at_s: Floats
    revision: int = -1

    def stale(self, snapshot: SchedulingSnapshot, shared: Ints, kinds: Ints, revision: int) -> Ints:
        """Those of `shared` to be evaluated with empty GPUs of the types `kinds`; marks them as evaluated."""
        if self.revision != revision:
            self.stamp[:], self.revision = -1, revision
        at = np.ix_(kinds, shared)
        known = (self.stamp[at] == snapshot.stamp[shared]) & (self.at_s[at] >= snapshot.now_s - _REFRESH_S)
        chosen = np.asarray(shared[~known.all(axis=0)], np.int64)
        at = np.ix_(kinds, chosen)
        self.stamp[at], self.at_s[at] = snapshot.stamp[chosen], snapshot.now_s
        return chosen


def part(
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
    kinds = np.flatnonzero(pool.free_of_type)
    elsewhere = (snapshot.type_of[:, None] != kinds).any(axis=1)
    crowded = (snapshot.tenant_count > 1) & tenancy.shareable
    left = np.flatnonzero(crowded | ((snapshot.tenant_count == 1) & elsewhere))
    if joined:
        left = left[~np.isin(left, list(joined))]
    looked: _LookedAt | None = None
    if left.size > _ALWAYS:
        looked = snapshot.derived(
            ("parting", tenancy.cache, makespan),
            lambda: _LookedAt(
                np.full((len(snapshot.types), len(snapshot)), -1, np.int64),
                np.zeros((len(snapshot.types), len(snapshot))),
            ),
        )
        left = looked.stale(snapshot, left, kinds, tenancy.cache.revision)
    if not left.size:
        return []
    whole = ~tenancy.shareable[left]
    moves = _whole_moves(snapshot, tenancy, pool, left[whole], restart_s)
    if not whole.all():
        moves += _gainful_moves(snapshot, tenancy, pool, left[~whole], restart_s, makespan)
    if looked is not None:
        # Jobs that would gain but find no GPU now are evaluated again.
        looked.stamp[:, [gpu for _, _, _, gpu, _ in moves]] = -1
    moved: list[Allocation] = []
    touched: set[int] = set()
    for _, _, kind, gpu, column in sorted(moves):
        job = snapshot.tenants[gpu][column]
        if touched.isdisjoint(job.gpus):
            gpus = pool.take(len(job.gpus), kind)
            if gpus:
                touched.update(job.gpus)
                moved.append(Allocation(job, gpus))
    return moved


def _whole_moves(
    snapshot: SchedulingSnapshot, tenancy: Tenancy, pool: Pool, gpus: Ints, restart_s: float
) -> list[tuple[float, int, int, int, int]]:
    """As `_gainful_moves`, of gangs and jobs that must be alone."""
    moves: list[tuple[float, int, int, int, int]] = []
    for gpu in gpus.tolist():
        job = snapshot.tenants[gpu][0]
        if gpu != job.gpus[0] or not job.job.preemptible or job.resume_s > snapshot.now_s:
            continue
        steps = solo_step_s(snapshot, tenancy.cache, job.job.workload)
        for kind, step in enumerate(steps):
            gain = snapshot.left(job) * (steps[snapshot.type_of[gpu]] - step) - restart_s
            if pool.free_of_type[kind] >= len(job.gpus) and gain > _MARGIN * restart_s:
                moves.append((-gain, job.number, kind, gpu, 0))
    return moves


def _gainful_moves(
    snapshot: SchedulingSnapshot, tenancy: Tenancy, pool: Pool, shared: Ints, restart_s: float, makespan: bool
) -> list[tuple[float, int, int, int, int]]:
    """(-gain, job number, GPU type, GPU, position on it) of every move from a GPU of `shared` that gains enough."""
    belief, state = tenancy.cache, tenancy.candidates(snapshot, shared)
    no_candidate = np.zeros_like(state.present)
    together = stages(
        belief, state.devices, state.members, state.iterations, state.present, no_candidate
    ).finish_s
    moves: list[tuple[float, int, int, int, int]] = []
    for column in range(state.present.shape[1]):
        rest = state.take(np.arange(len(shared)))
        rest.present[:, column] = False
        others = stages(
            belief, rest.devices, rest.members, rest.iterations, rest.present, no_candidate
        ).finish_s
        for row in np.flatnonzero(state.present[:, column]).tolist():
            job = snapshot.tenants[int(shared[row])][column]
            if not job.job.preemptible or job.resume_s > snapshot.now_s:
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
