"""Costs of starting, saving and moving jobs on partitioned cards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from profiling.checked_fields import check_range


@dataclass(frozen=True, slots=True)
class SliceCosts:
    """Costs of starting, saving and moving jobs; defaults from MISO (SoCC 2022).

    Attributes:
        reconfigure_s: repartitioning a card.
        first_start_s: from the first start of a job to its first step.
        resume_s: from a restart to the next step; `resume_of` gives it by model.
        checkpoint_s: saving the jobs of a card.
        report_s: from the end of a job until the controller learns of it.
    """

    reconfigure_s: float = 4.0
    first_start_s: float = 10.0
    resume_s: float = 5.0
    checkpoint_s: float = 1.5
    report_s: float = 2.5
    resume_of: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("reconfigure_s", "first_start_s", "resume_s", "checkpoint_s", "report_s")
        check_range(self, lambda value: 0 <= value < math.inf, "seconds from 0", *names)

    @property
    def move_s(self) -> float:
        """Seconds that a job loses when it moves to another slice."""
        return self.checkpoint_s + self.reconfigure_s + self.resume_s
