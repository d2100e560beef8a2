"""Policies for cards that can be partitioned: `full`, `mps`, `static-mig`, `oracle`, `miso` (after MISO) and
ours."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from profiling.errors import UnknownNameError
from profiling.names import one_of
from scheduling.slices.cluster import SlicePolicy

SLICE_POLICIES = {
    "full": "scheduling.slices.policies.full:Full",
    "mps": "scheduling.slices.policies.mps:Mps",
    "static-mig": "scheduling.slices.policies.static:StaticMig",
    "oracle": "scheduling.slices.policies.miso:Oracle",
    "miso": "scheduling.slices.policies.miso:Miso",
    "isacpp-slices": "scheduling.slices.policies.isacpp:IsacppSlices",
}


def is_slice_policy(name: str) -> bool:
    """Whether a slice policy has that name: one of `SLICE_POLICIES`, or `static-mig:PARTITION`."""
    return name in SLICE_POLICIES or name.startswith("static-mig:")


def get_slice_policy(name: str, **options: Any) -> SlicePolicy:
    """Return the policy of that name.

    Raises:
        UnknownNameError: no such policy.
    """
    base, colon, partition = name.partition(":")
    if base not in SLICE_POLICIES or not is_slice_policy(name):
        raise UnknownNameError("unknown policy", expected=one_of(name, SLICE_POLICIES), got=name)
    module, _, attribute = SLICE_POLICIES[base].partition(":")
    make: Callable[..., SlicePolicy] = getattr(import_module(module), attribute)
    return make(**(options | {"partition": partition, "name": name} if colon else options))
