"""Scales arrivals so that the jobs demand a given share of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.job import TraceJob


def offered_load(jobs: Sequence[TraceJob], gpus: int, step_time_s: Callable[[Workload], float]) -> float:
    """GPU-seconds that the jobs need alone, over the cluster's capacity between first and last submission.

    Args:
        gpus: GPUs of the cluster.
        step_time_s: seconds per step alone on the reference type.
    """
    work_s = sum(job.gpus * job.iterations * step_time_s(job.workload) for job in jobs)
    span_s = max(j.submit_s for j in jobs) - min(j.submit_s for j in jobs)
    return work_s / (gpus * span_s) if span_s > 0 else float("inf")


def at_load(
    jobs: Sequence[TraceJob], load: float, gpus: int, step_time_s: Callable[[Workload], float]
) -> list[TraceJob]:
    """The same jobs with submission times scaled so that the offered load is `load`.

    Raises:
        InputError: `load` is not above 0, or all jobs are submitted at once.
    """
    if not 0 < load < float("inf"):
        raise InputError("load is out of range", expected="a number above 0", got=load)
    now = offered_load(jobs, gpus, step_time_s)
    if now == float("inf"):
        raise InputError("a load needs arrivals over time", expected="jobs submitted at different times")
    first = min(job.submit_s for job in jobs)
    return [replace(job, submit_s=(job.submit_s - first) * now / load) for job in jobs]
