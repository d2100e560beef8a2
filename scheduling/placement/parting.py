"""Decides whether one of the jobs that share a GPU moves to an empty one, restart included."""

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
    """Move jobs of shared GPUs to empty ones of `pool`, the most gainful move first, while any move gains.

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
    shared = np.flatnonzero((snapshot.tenant_count > 1) & tenancy.shareable)
    if joined:
        shared = shared[~np.isin(shared, list(joined))]
    looked: _LookedAt | None = None
    if shared.size > _ALWAYS:
        looked = snapshot.derived(
            ("parting", tenancy.cache, makespan),
            lambda: _LookedAt(
                np.full((len(snapshot.types), len(snapshot)), -1, np.int64),
                np.zeros((len(snapshot.types), len(snapshot))),
            ),
        )
        kinds = np.flatnonzero(pool.free_of_type)
        shared = looked.stale(snapshot, shared, kinds, tenancy.cache.revision)
    if not shared.size:
        return []
    moves = _gainful_moves(snapshot, tenancy, pool, shared, restart_s, makespan)
    if looked is not None:
        # Jobs that would gain but find no GPU now are evaluated again.
        looked.stamp[:, [gpu for _, _, _, gpu, _ in moves]] = -1
    moved: list[Allocation] = []
    touched: set[int] = set()
    for _, _, kind, gpu, column in sorted(moves):
        if gpu in touched or not pool.free_of_type[kind]:
            continue
        gpus = pool.take(1, kind)
        if gpus:
            touched.add(gpu)
            moved.append(Allocation(snapshot.tenants[gpu][column], gpus))
    return moved


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
