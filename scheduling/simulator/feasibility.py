"""Jobs that can never run on a cluster, known before a simulation starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from profiling.errors import InfeasibleError
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.policies import SIZING

_NAMED = 5


def infeasible_jobs(
    jobs: Sequence[TraceJob], snapshot: SchedulingSnapshot, truth: SetCache | None
) -> dict[str, str]:
    """Reason by id for each job that requests more GPUs than any type has, or fits on no type that has
    enough.

    Ranges are ignored: policies that do not resize run a job on the GPUs that it requests, and all run the
    same jobs.

    Args:
        truth: decides what fits; None to check only the number of GPUs.
    """
    kinds = [
        (device, snapshot.sharing[snapshot.devices.index(device)], int(size))
        for device, size in zip(snapshot.types, snapshot.type_size, strict=True)
    ]
    most = max(size for *_, size in kinds)

    @cache
    def fits(workload: Workload, device: str, sharing: str) -> bool:
        return truth is None or truth.answer(device, [workload], sharing).fits

    reasons: dict[str, str] = {}
    for job in jobs:
        large_enough = [(device, sharing) for device, sharing, size in kinds if size >= job.gpus]
        # All are asked about, because the last digits of a predictor depend on earlier queries.
        fitting = [kind for kind in large_enough if fits(job.workload, *kind)]
        if not large_enough:
            reasons[job.id] = f"requests {job.gpus} GPUs of one type, and the cluster has {most}"
        elif not fitting:
            slow = truth.too_slow if truth is not None else ()
            names = (
                device + " (a step would take more than two weeks)" * ((device, job.workload) in slow)
                for device, _ in large_enough
            )
            reasons[job.id] = f"{job.workload} does not fit on {', '.join(names)} even alone"
    return reasons


def check_requests(policy: str, jobs: Sequence[TraceJob], snapshot: SchedulingSnapshot) -> None:
    """Raise `InfeasibleError` if some job requests more GPUs than any type has, for a policy that resizes none."""
    reasons = infeasible_jobs(jobs, snapshot, None)
    if reasons:
        raise InfeasibleError(
            f"{policy} gives jobs the GPUs that they request: {_named(reasons, len(jobs))}",
            hint=f"{', '.join(SIZING)} choose them; --skip-infeasible skips such jobs",
        )


def _named(reasons: dict[str, str], jobs: int) -> str:
    lines = [f"{name} {reason}" for name, reason in reasons.items()]
    more = f" (and {len(lines) - _NAMED} more)" if len(lines) > _NAMED else ""
    return f"{len(lines)} of {jobs} jobs can never run on this cluster: " + "; ".join(lines[:_NAMED]) + more


def without_infeasible(
    jobs: Sequence[TraceJob], reasons: dict[str, str], skip: bool
) -> tuple[list[TraceJob], list[str]]:
    """The jobs that can run, and a line about each of the others.

    Raises:
        InfeasibleError: some job cannot run and `skip` is false, or none can.
    """
    lines = [f"{name} {reason}" for name, reason in reasons.items()]
    kept = [job for job in jobs if job.id not in reasons]
    if lines and (not skip or not kept):
        raise InfeasibleError(
            _named(reasons, len(jobs)),
            hint="--skip-infeasible skips them" if kept else "choose another cluster",
        )
    return kept, lines
