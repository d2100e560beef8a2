"""A user's policy, given as `module:attribute`, with checks of its decisions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from profiling.errors import InputError
from profiling.importing import import_attribute, own_code
from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Decide, Policy, PolicyError
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot

_EXPECTED = "a Policy, or a function (snapshot, belief) -> list of Allocation"


def own_policy(name: str) -> Policy:
    """The policy at `module:attribute`; a function becomes a policy that is called when jobs arrive or leave.

    Raises:
        InputError: it cannot be imported, or is neither a `Policy` nor a function of two arguments.
    """
    value = import_attribute(name, _EXPECTED)
    if isinstance(value, Policy):
        policy = value
    elif callable(value) and not isinstance(value, type):
        _check_signature(name, value)
        policy = Policy(name.partition(":")[2], cast(Decide, value))
    else:
        raise InputError(f"{name!r} is not a policy", expected=_EXPECTED, got=type(value).__name__)
    return replace(policy, decide=partial(_checked, decide=policy.decide, name=name))


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    """Raise `InputError` unless the function can be called with a snapshot and a belief."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise InputError(f"{name!r} is not a policy", expected=_EXPECTED, got="a built-in function") from None
    try:
        signature.bind(None, None)
    except TypeError:
        raise InputError(
            f"{name!r} is not a policy", expected=_EXPECTED, got=f"a function {signature}"
        ) from None


def _checked(
    snapshot: SchedulingSnapshot, belief: SetCache, decide: Callable[..., Any], name: str
) -> list[Allocation]:
    with own_code(name, PolicyError):
        decisions = decide(snapshot, belief)
    if not isinstance(decisions, list | tuple):
        raise PolicyError(
            f"{name} returned no list", expected="a list of Allocation", got=type(decisions).__name__
        )
    seen: set[int] = set()
    checked = []
    for allocation in decisions:
        if not isinstance(allocation, Allocation) or not isinstance(allocation.job, JobState):
            raise PolicyError(
                f"{name} returned something other than allocations",
                expected="Allocation(job, gpus) with a job from snapshot.waiting or snapshot.running",
                got=repr(allocation)[:120],
            )
        job = allocation.job
        if job.number not in snapshot.waiting and job.number not in snapshot.running:
            raise PolicyError(f"{name} placed a job that is neither waiting nor running", got=job.id)
        if job.number in seen:
            raise PolicyError(
                f"{name} returned two allocations for one job", expected="each job once", got=job.id
            )
        seen.add(job.number)
        checked.append(replace(allocation, gpus=_gpus(allocation, snapshot, name)))
    return checked


def _gpus(allocation: Allocation, snapshot: SchedulingSnapshot, name: str) -> tuple[int, ...]:
    if isinstance(allocation.gpus, str) or not hasattr(allocation.gpus, "__iter__"):
        raise PolicyError(
            f"{name}: GPUs of job {allocation.job.id}",
            expected="a tuple of GPU numbers",
            got=repr(allocation.gpus),
        )
    gpus = tuple(allocation.gpus)
    whole = all(isinstance(g, int | np.integer) and not isinstance(g, bool) for g in gpus)
    if not whole or any(not 0 <= g < len(snapshot) for g in gpus) or len(set(gpus)) < len(gpus):
        raise PolicyError(
            f"{name}: GPUs of job {allocation.job.id}",
            expected=f"different numbers from 0 to {len(snapshot) - 1}",
            got=repr(allocation.gpus),
        )
    if len({snapshot.devices[g] for g in gpus}) > 1:
        raise PolicyError(
            f"{name}: GPUs of job {allocation.job.id}",
            expected="GPUs of one type",
            got=", ".join(snapshot.devices[g] for g in gpus),
        )
    job = allocation.job.job
    least, most = job.gpu_range
    if gpus and allocation.job.agent is None and not least <= len(gpus) <= most:
        raise PolicyError(
            f"{name}: job {job.id} is {'a gang' if least == most else 'elastic'}",
            expected=f"{least} GPUs" if least == most else f"{least} to {most} GPUs",
            got=len(gpus),
        )
    if set(gpus) == set(allocation.job.gpus):  # in another order, they are no move
        return allocation.job.gpus
    return tuple(int(g) for g in gpus)
