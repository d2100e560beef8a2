"""Accounting: finish-time fairness, Jain's index, users, deadlines, weights, and GPU-hours saved by
sharing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.types import Floats
from profiling.devices import get_device
from profiling.errors import UnknownNameError
from scheduling.core.job import JobState


def finish_time_rho(jobs: Sequence[JobState], completion_s: Floats, gpus: int, alone_s: Floats) -> Floats:
    """[jobs] completion time over that on a 1/N share of the cluster; at most 1 is fair.

    Mahajan et al., "Themis", NSDI 2020, section 3. N is the number of jobs submitted and not done, averaged
    over the job's own time in the cluster. A job that requests more GPUs than `gpus` / N takes proportionally
    longer on its share; one that requests fewer does not gain.

    Args:
        jobs: the jobs.
        completion_s: [jobs] seconds from submission to the end.
        gpus: GPUs of the cluster.
        alone_s: [jobs] seconds alone on the requested GPUs.
    """
    if not jobs:
        return np.zeros(0)
    begin = np.array([job.job.submit_s for job in jobs])
    end = begin + completion_s
    moments = np.concatenate([begin, end])
    order = np.argsort(moments, kind="stable")
    times = moments[order]
    active = np.cumsum(np.where(order < len(jobs), 1.0, -1.0))
    # Job-seconds up to each time at which N changes.
    area = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(times))])
    during = np.interp(end, times, area) - np.interp(begin, times, area)
    contending = np.maximum(during / np.maximum(completion_s, 1e-9), 1.0)
    asked = np.array([job.job.gpus for job in jobs], float)
    fair_s = alone_s * np.maximum(asked * contending / gpus, 1.0)
    rho: Floats = completion_s / np.maximum(fair_s, 1e-9)
    return rho


def jain_index(values: Floats) -> float:
    """1 if all are equal, 1 / n if one has everything (Jain, Chiu and Hawe, 1984)."""
    squares = float(np.square(values).sum()) * len(values)
    return float(values.sum()) ** 2 / squares if squares > 0 else 1.0


def accounts(
    jobs: Sequence[JobState], completion_s: Floats, gpus: int, busy_s: float, alone_s: Floats | None
) -> dict[str, Any]:
    """Figures for the JSON of a simulation; those that need `alone_s` are absent without it.

    `jain_index` is over users (over jobs where the trace names at most one) of the mean of 1 / rho.
    """
    if not jobs:
        return {}
    weights = np.array([job.job.priority for job in jobs])
    figures: dict[str, Any] = {"weighted_mean_jct_s": float(np.average(completion_s, weights=weights))}
    due = [k for k, job in enumerate(jobs) if job.job.deadline_s is not None]
    if due:
        # A job that was killed or failed has met nothing.
        met = [not jobs[k].ends_early and completion_s[k] <= (jobs[k].job.deadline_s or 0.0) for k in due]
        figures |= {"deadlines": len(due), "deadlines_met_ratio": float(np.mean(met))}
    names = sorted({job.job.user for job in jobs})
    members = {name: [k for k, job in enumerate(jobs) if job.job.user == name] for name in names}
    rho = None
    if alone_s is not None:
        rho = finish_time_rho(jobs, completion_s, gpus, alone_s)
        asked = np.array([job.job.gpus for job in jobs])
        served = 1.0 / np.maximum(rho, 1e-9)
        by_user = np.array([served[rows].mean() for rows in members.values()])
        figures |= {
            "mean_finish_time_rho": float(rho.mean()),
            "max_finish_time_rho": float(rho.max()),
            "jain_index": jain_index(by_user if len(names) > 1 else served),
            "gpu_hours_saved": (float((asked * alone_s).sum()) - busy_s) / 3600.0,
        }
    if len(names) > 1:
        figures["users"] = {
            name: {
                "jobs": len(rows),
                "mean_jct_s": float(completion_s[rows].mean()),
                "gpu_hours": sum(jobs[k].attained_gpu_s for k in rows) / 3600.0,
            }
            | ({} if rho is None else {"mean_finish_time_rho": float(rho[rows].mean())})
            for name, rows in members.items()
        }
    return figures


def energy(busy_s_on: Mapping[str, float]) -> dict[str, float]:
    """Upper bound on energy: GPUs with tenants at their power limit.

    Absent if a used device type states no power.
    """
    joules = 0.0
    for device, seconds in busy_s_on.items():
        try:
            power_limit_w = get_device(device).power_limit_w
        except UnknownNameError:
            power_limit_w = 0.0
        if power_limit_w <= 0:
            return {}
        joules += power_limit_w * seconds
    return {"energy_at_power_limit_kwh": joules / 3.6e6} if busy_s_on else {}
