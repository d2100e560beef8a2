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


def get_slice_policy(name: str, **options: Any) -> SlicePolicy:
    """Return the policy of that name.

    Raises:
        UnknownNameError: no such policy.
    """
    if name not in SLICE_POLICIES:
        raise UnknownNameError("unknown policy", expected=one_of(name, SLICE_POLICIES), got=name)
    module, _, attribute = SLICE_POLICIES[name].partition(":")
    make: Callable[..., SlicePolicy] = getattr(import_module(module), attribute)
    return make(**options)
