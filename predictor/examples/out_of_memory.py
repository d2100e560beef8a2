"""Sets that ran out of device memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from profiling.devices.mig import leaves_slices_open
from profiling.errors import InputError
from profiling.workload import ColocationSet


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A set that did not fit: a job in it ran out of device memory.

    Attributes:
        colocation_set: the device and all jobs on it.
        model_version: of the model in use then; empty if unknown.

    Raises:
        InputError: a whole card under `mig`, where each job has memory of its own.
    """

    colocation_set: ColocationSet
    model_version: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        asked = self.colocation_set
        if leaves_slices_open(asked.device, asked.sharing):
            raise InputError(
                "out_of_memory on a whole card under mig, where each job has memory of its own",
                expected=f"the job that ran out of it on its slice, such as {asked.device}:mig=1g",
                got=asked.device,
            )

    @classmethod
    def reported(
        cls, colocation_set: ColocationSet, also: Mapping[str, Any], model_version: str = ""
    ) -> Self:
        """From a report, of which `also` has the measured values by name; absent ones are None or empty.

        Raises:
            InputError: there are some.
        """
        for name, value in also.items():
            if value not in (None, ""):
                raise InputError(
                    f"{name} of a set that ran out of memory",
                    expected="out_of_memory without measured values",
                    got=f"{name}={value}",
                )
        return cls(colocation_set, model_version)

    def to_mapping(self) -> dict[str, Any]:
        """The set, without the model in use; see `predictor.examples.observations.report_of`."""
        return set_mapping(self.colocation_set) | {"out_of_memory": True}


def set_mapping(colocation_set: ColocationSet) -> dict[str, Any]:
    """A set in a report: its device, sharing mode and the SPECs of its jobs."""
    return {
        "device": colocation_set.device,
        "sharing": colocation_set.sharing,
        "jobs": [str(w) for w in colocation_set.workloads],
    }
