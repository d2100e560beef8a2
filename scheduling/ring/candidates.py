"""The schedules that a search tries; those without an answer are left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from profiling.errors import CotenantError, InfeasibleError
from scheduling.ring.engine import RingSchedule
from scheduling.ring.model import FormulaError


class Candidates:
    """Runs the candidates of one search.

    Attributes:
        failures: why a candidate has no schedule, in order.
    """

    def __init__(self) -> None:
        self.failures: list[CotenantError] = []
        self._tried = 0

    def schedule(self, make: Callable[[], RingSchedule | None]) -> RingSchedule | None:
        """The schedule of a candidate; None if it has none, does not end, or leaves the range of equation 7."""
        self._tried += 1
        try:
            return make()
        except (InfeasibleError, FormulaError) as error:
            self.failures.append(error)
            return None

    def warn(self) -> None:
        """Say how many candidates left the range of equation 7, if any did."""
        outside = [error for error in self.failures if isinstance(error, FormulaError)]
        if outside:
            warnings.warn(
                f"{len(outside)} of {self._tried} schedules that were tried were left out, because the literal form gives "
                f"no bandwidth in them, the first: {outside[0].detail}",
                stacklevel=3,
            )
