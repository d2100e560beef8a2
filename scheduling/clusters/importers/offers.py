"""Which GPUs of a node a pod's request can get."""

from __future__ import annotations

from functools import lru_cache

from profiling.devices import get_device, is_known, mig_layout, split_device
from profiling.devices.mig import MIG_OPTION
from scheduling.core.snapshot import Node


class Offers:
    """The GPUs of nodes that a request can get: slices of `mig_profile` or, if it is None, whole cards.

    A node without whole cards is taken to have the device plugin's `single` strategy, under which its slices are
    requested as GPUs. Nodes with the same GPUs share an answer, because a cluster has few kinds of them.
    """

    def __init__(self, mig_profile: str | None) -> None:
        self.mig_profile = mig_profile
        self._known: dict[tuple[str, ...], tuple[int, ...]] = {}

    def places(self, node: Node) -> tuple[int, ...]:
        """Numbers of these GPUs in `node.gpus`."""
        devices = tuple([gpu.device for gpu in node.gpus])
        known = self._known.get(devices)
        if known is None:
            profiles = [_profile_of(device) for device in devices]
            every = self.mig_profile is None and None not in profiles
            places = (k for k, profile in enumerate(profiles) if every or profile == self.mig_profile)
            known = self._known[devices] = tuple(places)
        return known


@lru_cache(maxsize=1024)
def _profile_of(device: str) -> str | None:
    """Profile of a slice: `3g.20gb` for `a100:mig=3g`; None for a whole card or an unknown type."""
    if MIG_OPTION not in device or not is_known(device):
        return None
    card, part = split_device(get_device(device).name)
    return None if part is None else mig_layout(card).profile(part).name
