"""Poisson arrivals of jobs with log-normal lengths."""

from __future__ import annotations

import math

import numpy as np

from profiling.errors import InputError
from scheduling.core.job import TraceJob
from scheduling.traces.mix import Mix

# Default, least and most.
_SETTINGS = {
    "rate": (20.0, 1e-3, 1e6),
    "jobs": (100.0, 1.0, 1e7),
    "mean_s": (3600.0, 1.0, 1e9),
    "sigma": (1.0, 0.0, 5.0),
    "gangs": (0.0, 0.0, 1.0),
}


def parse_synthetic(spec: str) -> dict[str, float]:
    """Settings of `synthetic:rate=...,jobs=...`.

    They are jobs per hour, count, mean seconds, sigma of the log, and share of gangs.

    Raises:
        InputError: unknown key, or a value is out of range.
    """
    settings = {key: default for key, (default, _, _) in _SETTINGS.items()}
    given: set[str] = set()
    for part in filter(None, spec.split(",")):
        key, _, text = part.partition("=")
        if key not in settings or key in given:
            raise InputError(
                "synthetic trace", expected="keys among " + ", ".join(settings) + ", each once", got=repr(key)
            )
        given.add(key)
        settings[key] = _number(key, text)
    return settings


def _number(key: str, text: str) -> float:
    """Value of a setting.

    Raises:
        InputError: not a number, or out of range.
    """
    (_, least, most), whole = _SETTINGS[key], key == "jobs"
    expected = f"a {'whole ' if whole else ''}number from {least:g} to {most:g}"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or (whole and value % 1):
        raise InputError(f"synthetic trace: {key} is out of range", expected=expected, got=repr(text))
    return value


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
