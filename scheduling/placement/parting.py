"""Jobs that share a GPU while another falls empty: whether one of them moves there, restart included."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from scheduling.core.job import Allocation
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, solo_step_s
from scheduling.placement.packing import Tenancy
from scheduling.placement.stages import stages

# A move has to gain this many restarts beyond its own.
_MARGIN = 0.5


def part(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    pool: Pool,
    restart_s: float,
    joined: Collection[int] = (),
    makespan: bool = False,
) -> list[Allocation]:
    """Move one job of a shared GPU to an empty one of `pool` where that gains most, as long as any move does.

    Args:
        restart_s: what a move costs the job.
        joined: GPUs that other jobs join in this decision; they are left alone.
        makespan: the gain is the earlier end of the later of both GPUs, not the sum over jobs.
    """
    if not any(pool.free_of_type):
        return []
    shared = np.flatnonzero((snapshot.tenant_count > 1) & tenancy.shareable)
    shared = shared[~np.isin(shared, list(joined))]
    if not shared.size:
        return []
    belief, state = tenancy.cache, tenancy.candidates(snapshot, shared)
    nobody = np.zeros_like(state.present)
    together = stages(belief, state.devices, state.members, state.iterations, state.present, nobody).finish_s
    moves: list[tuple[float, int, int, int, int]] = []
    for column in range(state.present.shape[1]):
        rest = state.take(np.arange(len(shared)))
        rest.present[:, column] = False
        others = stages(belief, rest.devices, rest.members, rest.iterations, rest.present, nobody).finish_s
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
