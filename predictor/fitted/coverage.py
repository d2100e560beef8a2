"""What a predictor's measurements cover, and which parts of a query they do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from profiling.devices import split_device
from profiling.workload import Workload

_WORDS = {
    "time-slice": "time slicing",
    "mps": "MPS",
    "mig": "MIG",
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Options measured under co-location; empty if not recorded.

    Attributes:
        devices: GPU types.
        precisions, modes, frameworks: of the jobs.
        sharing: `MODE on DEVICE`.
    """

    devices: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    sharing: tuple[str, ...] = ()

    @classmethod
    def of(cls, workloads: Iterable[Workload], devices: Iterable[str], sharing: Iterable[str]) -> Coverage:
        """From the members of measured sets, with their device and sharing mode."""
        jobs, places, modes = list(workloads), list(devices), list(sharing)
        return cls(
            tuple(sorted(set(places))),
            tuple(sorted({w.precision for w in jobs})),
            tuple(sorted({w.mode for w in jobs})),
            tuple(sorted({w.framework for w in jobs})),
            tuple(sorted({f"{m} on {d}" for m, d in zip(modes, places, strict=True)})),
        )

    def joined(self, other: Coverage) -> Coverage:
        """The union of two coverages."""
        return Coverage(
            *(tuple(sorted({*getattr(self, n), *getattr(other, n)})) for n in self.__dataclass_fields__)
        )

    def has_device(self, device: str) -> bool:
        """Whether co-location was measured on that type, or on a slice of it."""
        return not self.devices or split_device(device)[0] in _whole_devices(self.devices)

    def has_sharing(self, mode: str, device: str) -> bool:
        """Whether co-location was measured on that type in that mode, or nothing was recorded."""
        return not self.devices or f"{mode} on {device}" in self.sharing

    def has_mode(self, mode: str) -> bool:
        """Whether jobs in that mode were measured under co-location, or nothing was recorded."""
        return not self.modes or mode in self.modes

    def never_measured(self, device: str, sharing: str, workloads: Sequence[Workload]) -> list[str]:
        """Aspects of a set never measured under co-location, in words; none for a single job.

        Args:
            workloads: with the options that their graphs were captured with.
        """
        if len(workloads) < 2 or not self.devices:
            return []
        reasons = []
        if not self.has_device(device):
            reasons.append(f"co-location was never measured on this GPU type ({device})")
        if not self.has_sharing(sharing, device):
            measured_on = sorted(
                s.partition(" on ")[2] for s in self.sharing if s.startswith(f"{sharing} on ")
            )
            word = _WORDS[sharing]
            if not measured_on:
                reasons.append(f"{word} was never measured")
            elif self.has_device(device) or len(measured_on) < len(self.devices):
                reasons.append(f"{word} was measured on {', '.join(measured_on)} only")
        for name, known in (
            ("precision", self.precisions),
            ("mode", self.modes),
            ("framework", self.frameworks),
        ):
            new = sorted({getattr(w, name) for w in workloads} - set(known))
            if new:
                reasons.append(f"{name} {', '.join(new)} was never measured under co-location")
        return reasons


@lru_cache(maxsize=64)
def _whole_devices(devices: tuple[str, ...]) -> frozenset[str]:
    """The GPU types of whole devices and slices."""
    return frozenset(split_device(device)[0] for device in devices)
