"""What was measured of a job with some frozen prefixes, carried over to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredPrefixes:
    """A number per step, measured with some prefixes and predicted for all; more frozen layers never raise it.

    What differs from the prediction is taken from the longest measured prefix that is no longer than the one asked
    for, otherwise from the shortest. The answer is no lower than what was measured with a longer prefix.

    Attributes:
        measured: by prefix; at least one.
        predicted: the number with a prefix, non-increasing in it.
    """

    measured: Mapping[int, float]
    predicted: Callable[[int], float]

    def scaled(self, frozen_prefix: int) -> float:
        """The number with a prefix, if the prediction is off by a factor."""
        nearest = self._nearest(frozen_prefix)
        value = self.measured[nearest] * (self.predicted(frozen_prefix) / self.predicted(nearest))
        return self._at_least(value, frozen_prefix)

    def moved(self, frozen_prefix: int) -> float:
        """The same if the prediction is off by a constant."""
        nearest = self._nearest(frozen_prefix)
        value = self.measured[nearest] + self.predicted(frozen_prefix) - self.predicted(nearest)
        return self._at_least(value, frozen_prefix)

    def _nearest(self, frozen_prefix: int) -> int:
        return max((k for k in self.measured if k <= frozen_prefix), default=min(self.measured))

    def _at_least(self, value: float, frozen_prefix: int) -> float:
        if frozen_prefix in self.measured:  # whatever contradicts it
            return value
        return max([value, *(m for k, m in self.measured.items() if k > frozen_prefix)])
