"""Schedulers by name, as the command line offers them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from profiling.errors import UnknownNameError
from scheduling.ring.baselines import first_fit, list_scheduling, random_fit
from scheduling.ring.engine import RingSchedule
from scheduling.ring.search import best_list, by_priority, local_search
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


def get_scheduler(name: str) -> Scheduler:
    """Raises UnknownNameError when there is none of that name."""
    if name not in SCHEDULERS:
        raise UnknownNameError("unknown scheduler", expected="one of " + ", ".join(SCHEDULERS), got=name)
    return SCHEDULERS[name]
