"""Policies by name; each in its own file, imported on demand."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from profiling.errors import InputError, UnknownNameError
from profiling.names import one_of
from scheduling.core.policy import Policy
from scheduling.slices.policies import is_slice_policy

POLICIES = {
    "fifo": "fifo:POLICY",
    "sjf": "sjf:POLICY",
    "srtf": "srtf:POLICY",
    "edf": "edf:POLICY",
    "tiresias": "tiresias:POLICY",
    "optimus": "optimus:POLICY",
    "optimus-shortest": "optimus:SHORTEST",
    "themis": "themis:POLICY",
    "gavel": "gavel:POLICY",
    "gavel-packed": "gavel:PACKED",
    "gavel-base": "gavel:BASE",
    "gavel-max-sum": "gavel:MAX_SUM",
    "gavel-finish-time": "gavel:FINISH_TIME",
    "gavel-finish-time-base": "gavel:FINISH_TIME_BASE",
    "gavel-fifo": "gavel:FIFO",
    "gavel-fifo-base": "gavel:FIFO_BASE",
    "gavel-fifo-packed": "gavel:FIFO_PACKED",
    "gavel-sia": "gavel:SIA",
    "allox": "gavel:ALLOX",
    "pollux": "pollux:POLICY",
    "icefrog": "icefrog:POLICY",
    "icefrog-unfrozen": "icefrog:UNFROZEN",
    "pollux-freezing": "icefrog:POLLUX",
    "exclusive": "exclusive:POLICY",
    "blind": "blind:POLICY",
    "blind-sjf": "blind:SHORTEST",
    "horus": "horus:POLICY",
    "lucid": "lucid:POLICY",
    "isacpp": "isacpp:POLICY",
    "isacpp-interference": "isacpp:INTERFERENCE",
    "isacpp-makespan": "isacpp:MAKESPAN",
    "isacpp-gangs": "gangs:POLICY",
    "isacpp-online": "online:POLICY",
    "isacpp-makespan-online": "online:MAKESPAN",
    "sia": "sia:POLICY",
    "sia-packed": "sia:PACKED",
}
# Those that choose how many GPUs the resizable jobs of `sia:` traces get; under others they get what they request.
SIZING = ("optimus", "optimus-shortest", "pollux", "sia", "sia-packed")
# Those that resize the elastic jobs of other traces.
RESIZING = (*SIZING, "icefrog", "icefrog-unfrozen", "pollux-freezing")


def get_policy(name: str, as_published: bool = False) -> Policy:
    """The policy called `name`, or a user's policy for `module:attribute`.

    Args:
        as_published: with the known bugs of its published code, if supported.

    Raises:
        UnknownNameError: no policy has that name.
        InputError: `module:attribute` cannot be imported or is not a policy.
    """
    if ":" in name:
        from scheduling.policies.own import own_policy

        return own_policy(name)
    if name not in POLICIES:
        raise UnknownNameError(
            "unknown policy",
            expected="module:POLICY, or " + one_of(name, POLICIES),
            got=name,
            hint="docs/scheduling.md lists all",
        )
    module, _, attribute = POLICIES[name].partition(":")
    policy: Policy = getattr(import_module(f"scheduling.policies.{module}"), attribute)
    return policy.as_published or policy if as_published else policy


def check_upstream_rounds(names: Sequence[str]) -> None:
    """Raise `InputError` if none of the policies supports the rounds of a public simulator."""
    if all(name not in POLICIES or get_policy(name).as_published is None for name in names):
        raise InputError(
            "--upstream-rounds applies to none of these policies",
            expected="gavel or another of Gavel's, or sia",
            got=", ".join(names),
        )


def check_elastic(names: Sequence[str]) -> None:
    """Raise `InputError` if none of the policies resizes jobs; a user's own may."""
    if not any(name in RESIZING or (":" in name and not is_slice_policy(name)) for name in names):
        raise InputError(
            "--elastic applies to none of these policies, which give every job the GPUs that it requests",
            expected="one of " + ", ".join(RESIZING) + ", or your own",
            got=", ".join(names),
        )
