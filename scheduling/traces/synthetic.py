"""Poisson arrivals of jobs with log-normal lengths."""

from __future__ import annotations

import numpy as np

from profiling.errors import InputError
from scheduling.core.job import TraceJob
from scheduling.traces.mix import Mix

_DEFAULTS = {"rate": 20.0, "jobs": 100.0, "mean_s": 3600.0, "sigma": 1.0, "gangs": 0.0}


def parse_synthetic(spec: str) -> dict[str, float]:
    """Settings of `synthetic:rate=...,jobs=...`.

    They are jobs per hour, count, mean seconds, sigma of the log, and share of gangs.

    Raises:
        InputError: unknown key, or a value is out of range.
    """
    settings = dict(_DEFAULTS)
    given: set[str] = set()
    for part in filter(None, spec.split(",")):
        key, _, text = part.partition("=")
        if key not in settings or key in given:
            raise InputError(
                "synthetic trace", expected="keys among " + ", ".join(settings) + ", each once", got=repr(key)
            )
        given.add(key)
        try:
            settings[key] = float(text)
        except ValueError:
            raise InputError(f"synthetic trace: {key}", expected="a number", got=repr(text)) from None
    if not (
        settings["rate"] > 0
        and 1 <= settings["jobs"] <= 10**7
        and settings["mean_s"] > 0
        and 0 <= settings["sigma"] < 10
    ):
        raise InputError(
            "synthetic trace", expected="rate, jobs, mean_s above 0 and sigma from 0 to 10", got=spec
        )
    if settings["jobs"] % 1:
        raise InputError("synthetic trace: jobs", expected="a whole number", got=f"{settings['jobs']:g}")
    if not 0 <= settings["gangs"] <= 1:
        raise InputError("synthetic trace: gangs", expected="a share from 0 to 1", got=settings["gangs"])
    return settings


def synthetic(spec: str, mix: Mix, seed: int = 0) -> list[TraceJob]:
    """Jobs of a synthetic trace; gangs take 2, 4 or 8 GPUs."""
    settings = parse_synthetic(spec)
    count = int(settings["jobs"])
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(3600.0 / settings["rate"], count)) if count else np.zeros(0)
    sigma = settings["sigma"]
    duration = np.maximum(rng.lognormal(np.log(settings["mean_s"]) - sigma**2 / 2, sigma, count), 1.0)
    gangs = np.where(rng.random(count) < settings["gangs"], rng.choice([2, 4, 8], count), 1)
    return [
        TraceJob(
            f"job-{k}",
            workload,
            float(duration[k]) / mix.step_time_s(workload),
            float(arrival[k]),
            gpus=int(gangs[k]),
        )
        for k, workload in enumerate(mix.draw(count, seed + 1))
    ]
