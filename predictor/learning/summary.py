"""Summary of what a posterior has observed, and by what factor that moved the answers."""

from __future__ import annotations

import math
from typing import Any

from predictor.examples.observations import OF_DEVICE
from predictor.learning.evidence.observed import set_of
from predictor.learning.posterior import Posterior
from profiling.workload import ColocationSet


def corrections_of(posterior: Posterior) -> list[dict[str, Any]]:
    """Observed members of sets: how often, the median step time, and by what factor the prediction moved."""
    seen = posterior.observed
    if not len(seen):
        return []
    sets = [set_of(key) for key in seen.keys]
    before, after = posterior.predictor.predict_arrays(sets), posterior.predict_arrays(sets)
    return [
        {
            "device": key[0], "sharing": key[1], "job": str(key[2]), "beside": [str(w) for w in key[3]],
            "solo_measured": key[2].solo.step_time_s is not None, "count": int(seen.count[row]),
            "step_time_s": math.exp(float(seen.log_step_s[row])),
            "factor": float(after.step_time_s[row, 0] / before.step_time_s[row, 0]),
        }
        for row, key in enumerate(seen.keys)
    ]  # fmt: skip


def ran_out_of_memory(posterior: Posterior) -> list[dict[str, Any]]:
    """Sets that ran out of memory, and whether they fit: those that were also observed to run often do."""
    sets = [set_of(key) for key in posterior.ran_out.keys]
    fits = posterior.predict_arrays(sets).fits.tolist() if sets else []
    return [
        {"device": s.device, "sharing": s.sharing, "jobs": [str(w) for w in s.workloads], "fits": fit}
        for s, fit in zip(sets, fits, strict=True)
    ]


def alone_of(posterior: Posterior) -> list[dict[str, Any]]:
    """Memory and utilisation observed of jobs alone: how often, the median, and its ratio to the prediction."""
    jobs = posterior.measured.jobs
    if not jobs:
        return []
    sets = [
        ColocationSet(device, (job,), "mig" if in_slice else "time-slice") for device, in_slice, job in jobs
    ]
    before = posterior.predictor.predict_arrays(sets)
    return [
        {
            "device": asked.device, "sharing": asked.sharing, "job": str(asked.workloads[0]), "quantity": name,
            "count": alone.count(name), "value": value, "factor": value / float(getattr(before, name)[row, 0]),
        }
        for row, (asked, alone) in enumerate(zip(sets, jobs.values(), strict=True))
        for name in OF_DEVICE
        if (value := getattr(alone.solo, name)) is not None
    ]  # fmt: skip
