"""Elastic jobs with diminishing returns in GPUs, for the tests."""

from __future__ import annotations

import numpy as np

from scheduling.elastic.jobs import SIZES, ElasticJob


def job(
    number: int = 0,
    left: float = 1000.0,
    scaling: float = 0.8,
    speedup: float = 1.5,
    shares: tuple[float, ...] = (0.0, 0.1, 0.3, 0.8),
    progress: float = 0.5,
    **rest: object,
) -> ElasticJob:
    prefixes = np.linspace(1.0, speedup, len(shares))
    rate = np.array(SIZES)[:, None] ** scaling * prefixes[None, :]
    return ElasticJob(number, left, rate, np.array(shares), progress, **rest)  # type: ignore[arg-type]


def some(count: int, seed: int = 0) -> list[ElasticJob]:
    draw = np.random.default_rng(seed)
    return [
        job(
            n,
            float(draw.uniform(10, 10_000)),
            float(draw.uniform(0.4, 0.95)),
            float(draw.uniform(1.0, 2.5)),
            progress=float(draw.uniform(0, 1)),
        )
        for n in range(count)
    ]
