"""Schedulers of jobs that are all present at time 0, by their command-line names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from profiling.errors import UnknownNameError
from scheduling.ring.baselines import first_fit, list_scheduling, random_fit
from scheduling.ring.engine import Execution, RingSchedule
from scheduling.ring.exact import check_exact, exact
from scheduling.ring.model import RingCluster, RingJob
from scheduling.ring.search import best_list, by_priority, local_search, lower_bound_s
from scheduling.ring.sjf_bco import SjfBcoConfig, sjf_bco

Scheduler = Callable[..., RingSchedule]  # (cluster, jobs, execution) → schedule

SCHEDULERS: dict[str, Scheduler] = {
    "sjf-bco": sjf_bco,
    "sjf-bco-literal": partial(sjf_bco, config=SjfBcoConfig(packing=False)),
    "list": list_scheduling,
    "first-fit": first_fit,
    "random": random_fit,
    "longest-first": by_priority,
    "best-list": best_list,
    "local-search": local_search,
}


EXACT = "exact"
ONLINE = "online"
"""The policy for jobs that arrive, see `scheduling.ring.online`; not one of `plan`."""


def plan(
    policy: str, cluster: RingCluster, jobs: Sequence[RingJob], execution: Execution
) -> tuple[RingSchedule, float]:
    """A schedule by the named policy, and a lower bound on the makespan in seconds.

    Raises:
        UnknownNameError: no such policy.
        InfeasibleError: a gang is larger than the cluster.
        InputError, LimitError: a case that `exact` cannot solve.
        FormulaError: the literal equation 7 has no bandwidth for a job in any schedule that the policy tries.
    """
    bound_s = lower_bound_s(cluster, jobs, execution)
    if policy == EXACT:
        check_exact(execution)
        solved = exact(cluster, jobs, execution, best_list(cluster, jobs, execution))
        return solved.schedule, max(bound_s, solved.lower_bound_s)
    if policy not in SCHEDULERS:
        raise UnknownNameError(
            "unknown scheduler", expected="one of " + ", ".join([*SCHEDULERS, EXACT, ONLINE]), got=policy
        )
    return SCHEDULERS[policy](cluster, jobs, execution), bound_s
