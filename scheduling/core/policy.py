"""Policies: functions from snapshot and belief to decisions.

What a policy remembers between calls is kept by the snapshot (`SchedulingSnapshot.derived`), not by the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiling.errors import CotenantError, InputError
from scheduling.core.job import Allocation
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot

Decide = Callable[[SchedulingSnapshot, SetCache], list[Allocation]]


class PolicyError(CotenantError):
    """A policy raised an error or returned an invalid decision."""

    status = 422
    slug = "bad-decision"
    title = "Policy returned an invalid decision"
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Policy:
    """A named policy.

    Attributes:
        decide: the function; jobs that it does not mention are unchanged.
        round_s: seconds between calls; None: whenever a job arrives or leaves.
        preemptive: whether to call it even when no job waits, as it is with `round_s`.
        aligned: rounds start at multiples of `round_s`; otherwise one starts as soon as a job waits and
            nothing runs.
        rests: after a round that serves no job, the next one starts with the next arrival, if there is one.
        freezes: whether it freezes layers and so needs the jobs' gradient norms.
        saves: whether a job saves a checkpoint before this policy stops or moves it, also with realism.
        as_published: the same policy with the known bugs of its published code.
    """

    name: str
    decide: Decide
    round_s: float | None = None
    preemptive: bool = False
    aligned: bool = True
    rests: bool = False
    freezes: bool = False
    saves: bool = False
    as_published: Policy | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.round_s, int | float) and 0 < self.round_s < float("inf")
        if self.round_s is not None and not known:
            raise InputError(
                f"policy {self.name}: round_s", expected="seconds above 0, or None", got=repr(self.round_s)
            )
