"""What was observed of a job alone, and what to tell the predictor of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from profiling.devices import get_device, is_known
from profiling.workload import STEP_TIMES_S, SoloProfile, Workload

if TYPE_CHECKING:
    from predictor.types import MemberPrediction

# Step times and memory are rounded to this in the log, utilisation as it is: below what a measurement repeats
# to. With each new value all sets of the job are predicted anew.
_GRID = 0.01
NAMES = {
    "step_time_s": "step time",
    "memory_bytes": "memory",
    "utilization_ratio": "utilisation",
}
"""What can be observed, in words."""


@dataclass(frozen=True, slots=True)
class Alone:
    """What was observed of a job alone.

    Attributes:
        profiles: one per observation, without what the SPEC stated.
        solo: their medians, rounded.
    """

    profiles: tuple[SoloProfile, ...]
    solo: SoloProfile

    @classmethod
    def of(cls, profiles: tuple[SoloProfile, ...], device: str) -> Alone:
        """From at least one observation on a device."""
        middle: dict[str, float] = {}
        for name in NAMES:
            values = [value for profile in profiles if (value := getattr(profile, name)) is not None]
            if values:
                middle[name] = _rounded(name, median(values), device)
        return cls(profiles, SoloProfile(**middle))

    def count(self, name: str) -> int:
        """How often that was observed."""
        return sum(getattr(profile, name) is not None for profile in self.profiles)

    def in_words(self, names: Iterable[str]) -> str:
        """What was observed, and how often."""
        words: list[str] = []
        for name in names:
            count = self.count(name)
            times = "once" if count == 1 else f"{count} times"
            words.append(f"{NAMES[name]} ({times if words else f'observed {times}'})")
        return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))

    def missing(self, workload: Workload) -> dict[str, float]:
        """What the job's SPEC does not state of it."""
        return {
            f.name: value
            for f in fields(SoloProfile)
            if (value := getattr(self.solo, f.name)) is not None and getattr(workload.solo, f.name) is None
        }


class Told(NamedTuple):
    """A job with what was observed of it alone stated, its SPEC as asked, and what was told in words."""

    workload: Workload
    job: str
    reason: str


class Notes:
    """What was told of the members of a set.

    Args:
        told: of each member; None if nothing.
    """

    __slots__ = ("_told", "reasons")

    def __init__(self, told: Sequence[Told | None] = ()) -> None:
        self._told, self.reasons = told, [t.reason for t in told if t is not None]

    def as_asked(self, members: tuple[MemberPrediction, ...]) -> tuple[MemberPrediction, ...]:
        """The members' answers with their SPECs as asked."""
        if not self.reasons:
            return members
        return tuple(
            [
                member if told is None else structs.replace(member, job=told.job)
                for member, told in zip(members, self._told, strict=True)
            ]
        )


NO_NOTES = Notes()


def _rounded(name: str, value: float, device: str) -> float:
    if name == "utilization_ratio":
        return _GRID * round(value / _GRID)
    rounded = math.exp(_GRID * round(math.log(value) / _GRID))
    if name == "step_time_s":
        return min(max(rounded, STEP_TIMES_S[0]), STEP_TIMES_S[1])
    # Rounding must not take a job that ran on the device for one that does not fit.
    return min(rounded, get_device(device).memory_bytes) if is_known(device) else rounded
