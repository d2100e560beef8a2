"""Policies by name; each in a file of its own, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from profiling.errors import UnknownNameError
from scheduling.core.policy import Policy

POLICIES = {
    "fifo": "fifo:POLICY",
    "sjf": "sjf:POLICY",
    "srtf": "srtf:POLICY",
    "tiresias": "tiresias:POLICY",
    "optimus": "optimus:POLICY",
    "themis": "themis:POLICY",
    "gavel": "gavel:POLICY",
    "gavel-packed": "gavel:PACKED",
    "pollux": "pollux:POLICY",
    "exclusive": "exclusive:POLICY",
    "blind": "blind:POLICY",
    "blind-sjf": "blind:SHORTEST",
    "horus": "horus:POLICY",
    "lucid": "lucid:POLICY",
    "isacpp": "isacpp:POLICY",
    "isacpp-interference": "isacpp:INTERFERENCE",
    "isacpp-makespan": "isacpp:MAKESPAN",
    "isacpp-online": "online:POLICY",
    "isacpp-makespan-online": "online:MAKESPAN",
    "sia": "sia:POLICY",
    "sia-packed": "sia:PACKED",
}


def get_policy(name: str) -> Policy:
    """The policy called `name`, or the user's own where that is `module:attribute`.

    Raises:
        UnknownNameError: there is none of that name.
        InputError: `module:attribute` cannot be imported or is no policy.
    """
    if ":" in name:
        from scheduling.policies.own import own_policy

        return own_policy(name)
    if name not in POLICIES:
        raise UnknownNameError(
            "unknown policy", expected="module:POLICY, or one of " + ", ".join(POLICIES), got=name
        )
    module, _, attribute = POLICIES[name].partition(":")
    policy: Policy = getattr(import_module(f"scheduling.policies.{module}"), attribute)
    return policy
