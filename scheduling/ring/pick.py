"""Which idle GPUs a job takes: FA-FFP (packing, and as listed in the paper) and LBSGF."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduling.ring.engine import Gpu, RingRun
from scheduling.ring.model import RingCluster, RingJob, execution_s, ring_timing

Pick = Callable[[RingJob, RingRun], "tuple[Gpu, ...] | None"]


def estimate_s(cluster: RingCluster, job: RingJob) -> float:
    """rho_j: execution time without contention.

    It is on one server if any is large enough, otherwise on the fewest. The paper divides it by a bound u on
    its error; a constant u only rescales theta, so it is omitted here.
    """
    # ring_timing reads only whether a placement spans servers, and how many.
    placement = dict.fromkeys(range(fewest_servers(cluster, job)), 1)
    return execution_s(job, job.iterations, ring_timing(cluster, job, placement, 1).iteration_time_s)


def fewest_servers(cluster: RingCluster, job: RingJob) -> int:
    """Number of servers that a gang spans at least; all of them if it does not fit."""
    left, servers = job.gpus, 0
    for count in sorted(cluster.servers, reverse=True):
        left, servers = left - count, servers + 1
        if left <= 0:
            break
    return servers


def fa_ffp(
    job: RingJob,
    run: RingRun,
    theta_s: float = float("inf"),
    *,
    packing: bool = True,
    servers: Iterable[int] | None = None,
) -> tuple[Gpu, ...] | None:
    """Fragment-aware first-fit packing (algorithm 2): idle GPUs that the job keeps within `theta_s` of work.

    As listed: the least used GPUs, wherever they are. Packing, as described in the text: a server in use that
    holds the whole gang with the fewest idle GPUs left over; otherwise the idle server that it fills best;
    otherwise the fewest servers. None if too few GPUs are idle and within the bound, so that the job waits.
    """
    bound_s = theta_s if theta_s == float("inf") else theta_s - estimate_s(run.cluster, job)
    candidates = {
        server: sorted(
            (gpu for gpu in run.idle[server] if run.load[server][gpu] <= bound_s),
            key=lambda gpu, loads=run.load[server]: (loads[gpu], gpu),  # type: ignore[misc]
        )
        for server in (range(len(run.idle)) if servers is None else servers)
    }
    if sum(map(len, candidates.values())) < job.gpus:
        return None
    if not packing:
        ranked = sorted(
            (run.load[server][gpu], server, gpu) for server, gpus in candidates.items() for gpu in gpus
        )
        return tuple((server, gpu) for _, server, gpu in ranked[: job.gpus])
    whole = [server for server, gpus in candidates.items() if len(gpus) >= job.gpus]
    if whole:

        def fit(server: int) -> tuple[bool, int, int]:
            idle = len(run.idle[server])
            return idle == run.cluster.servers[server], idle, server

        best = min(whole, key=fit)
        return tuple((best, gpu) for gpu in candidates[best][: job.gpus])
    chosen: list[Gpu] = []
    for server in sorted(candidates, key=lambda s: (-len(candidates[s]), run.split_rings(s), s)):
        chosen.extend((server, gpu) for gpu in candidates[server][: job.gpus - len(chosen)])
        if len(chosen) == job.gpus:
            break
    return tuple(chosen)


def lbsgf(
    job: RingJob,
    run: RingRun,
    theta_s: float = float("inf"),
    *,
    packing: bool = True,
    load_factor: float = 1.0,
) -> tuple[Gpu, ...] | None:
    """Least-busy-server-GPU-first (algorithm 3): FA-FFP inside a prefix of the servers by mean use.

    It is the shortest prefix with `load_factor` (lambda_j, at least 1) times the job's GPUs.
    """
    mean_load = [sum(loads) / len(loads) for loads in run.load]
    prefix: list[int] = []
    capacity = 0
    for server in sorted(range(len(mean_load)), key=lambda s: (mean_load[s], s)):
        prefix.append(server)
        capacity += run.cluster.servers[server]
        if capacity >= load_factor * job.gpus:
            break
    return fa_ffp(job, run, theta_s, packing=packing, servers=prefix)


def whole_or_wait(job: RingJob, run: RingRun) -> tuple[Gpu, ...] | None:
    """Packing that waits for a server with room for the whole gang, if any server is large enough."""
    if job.gpus <= max(run.cluster.servers) and not any(len(idle) >= job.gpus for idle in run.idle):
        return None
    return fa_ffp(job, run)
