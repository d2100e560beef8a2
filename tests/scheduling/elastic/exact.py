"""Exact sizes and prefixes for small cases, by an integer linear program, to check `allocate`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling.errors import InfeasibleError
from scheduling.elastic.allocate import weights
from scheduling.elastic.jobs import SIZES, ElasticJob, Floats, Grant, IceFrogConfig
from scheduling.elastic.penalty import FreezingGuards, allowed_prefixes, frozen_penalty


def effective_rates(job: ElasticJob, guards: FreezingGuards) -> Floats:
    """[S, K] R: effective progress per second; 0 where the guards forbid the prefix."""
    allowed = allowed_prefixes(job.norm_share, job.progress, job.debt, guards)
    return job.rate * np.where(allowed, 1.0 - frozen_penalty(job.norm_share, guards.kappa), 0.0)


def objective(jobs: Sequence[ElasticJob], grants: Sequence[Grant], gpus: int, config: IceFrogConfig) -> float:
    """sum_j weight_j R*_j(fair) / R_j(g, k) of grants that give every job at least one GPU."""
    rates = [effective_rates(job, config.guards) for job in jobs]
    weight, fair = weights(jobs, np.array([r.max(axis=1) for r in rates]), gpus, config)
    return float(
        sum(
            w * f / rate[grant.size, grant.prefix]
            for w, f, rate, grant in zip(weight, fair, rates, grants, strict=True)
        )
    )


def allocate_exact(
    jobs: Sequence[ElasticJob], gpus: int, config: IceFrogConfig | None = None, time_limit_s: float = 10.0
) -> list[Grant]:
    """Best (g, k) for every job, each with at least one GPU, without hysteresis.

    One binary per (job, size, prefix); HiGHS.

    Raises:
        InfeasibleError: fewer GPUs than jobs, or no solution within the time limit.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    config = config or IceFrogConfig()
    rates = [effective_rates(job, config.guards) for job in jobs]
    weight, fair = weights(jobs, np.array([r.max(axis=1) for r in rates]), gpus, config)
    keys = [(j, s, k) for j, rate in enumerate(rates) for s, k in zip(*np.nonzero(rate > 0), strict=True)]
    cost = np.array([weight[j] * fair[j] / rates[j][s, k] for j, s, k in keys])
    once = np.zeros((len(jobs), len(keys)))
    used = np.array([float(SIZES[s]) for _, s, _ in keys])
    for column, (j, _, _) in enumerate(keys):
        once[j, column] = 1.0
    solution = milp(
        cost,
        integrality=np.ones(len(keys), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(used[None, :], 0, gpus)],
        options={"time_limit": time_limit_s},
    )
    if solution.x is None:
        raise InfeasibleError(
            "no exact allocation found",
            expected=f"at least {len(jobs)} GPUs and enough time",
            got=solution.message,
        )
    chosen = [keys[i] for i in np.flatnonzero(solution.x > 0.5)]
    return [Grant(int(s), int(k), SIZES[s]) for _, s, k in sorted(chosen)]
