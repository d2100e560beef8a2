"""One way to use a card, and the chosen one with its alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from predictor.answering.transferred import Transfer
from profiling.workload import ColocationSet
from scheduling.slices.options import Options, SetOption, SliceJob

KINDS = ("whole", "time-slice", "mps", "mps-shares", "mig", "mixture")


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """One slice (or the whole card) and its jobs.

    Attributes:
        device: `a100` or `a100:mig=3g`.
        start: first memory slot; None for a whole card.
        option: its jobs; None if empty.
    """

    device: str
    start: int | None
    option: SetOption | None

    def colocation_set(
        self, jobs: Sequence[SliceJob], transfer: Transfer | None = None
    ) -> ColocationSet | None:
        """Its jobs as a query to the predictor; None if it is empty.

        Args:
            jobs: as measured on the whole card.
            transfer: carries measurements over.
        """
        option = self.option
        if option is None:
            return None
        members = tuple(
            replace(job, sm_share_ratio=share) if transfer is None else transfer(job, self.device, share)
            for job, share in zip(
                (jobs[number].workload for number in option.members), option.sm_share_ratio, strict=True
            )
        )
        return ColocationSet(self.device, members, "mps" if option.sharing == "mps" else "time-slice")


@dataclass(frozen=True, slots=True)
class CardPlan:
    """One way to use a card.

    Attributes:
        kind: `whole` (one job), `time-slice`, `mps`, `mps-shares` (some share below 1), `mig` (one job per
            slice) or `mixture` (some slices hold several jobs).
        partition: e.g. `4g+2g+1g`; empty for an unpartitioned card.
        slices: in slot order.
        value: of the objective; higher is better.
        waiting: jobs without room.
    """

    kind: str
    partition: str
    slices: tuple[PlacedSlice, ...]
    value: float
    waiting: tuple[int, ...] = ()

    @property
    def placed(self) -> int:
        return sum(len(s.option.members) for s in self.slices if s.option is not None)

    def sets(self, jobs: Sequence[SliceJob], transfer: Transfer | None = None) -> list[ColocationSet | None]:
        """The jobs of each slice as a query to the predictor; None for an empty one."""
        return [placed.colocation_set(jobs, transfer) for placed in self.slices]

    def of_job(self, number: int) -> tuple[PlacedSlice, int] | None:
        """Return the slice of a job and the job's position on it."""
        for placed in self.slices:
            if placed.option is not None and number in placed.option.members:
                return placed, placed.option.members.index(number)
        return None


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The chosen plan, its alternatives, and the reasons.

    Attributes:
        alternatives: the best plan of each other kind and partition, best first.
        reasons: why it was chosen over the runner-up.
    """

    options: Options
    chosen: CardPlan
    alternatives: tuple[CardPlan, ...]
    reasons: tuple[str, ...] = ()

    def speed(self, plan: CardPlan, number: int) -> float:
        """Relative speed of a job in a plan; 0 if it waits."""
        placed = plan.of_job(number)
        if placed is None or placed[0].option is None:
            return 0.0
        return float(self.options.reference_s[number] / placed[0].option.step_time_s[placed[1]])

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON object of `cotenant plan slices --json`."""
        options = self.options
        return {
            "device": options.card,
            "objective": options.config.objective,
            **self.card_json(self.chosen),
            "alternatives": [
                {
                    "kind": card.kind,
                    "partition": card.partition,
                    "value": card.value,
                    **self.summary(card),
                }
                for card in self.alternatives
            ],
            "reasons": list(self.reasons),
        }

    def summary(self, plan: CardPlan) -> dict[str, float]:
        """Number of jobs placed, sum and minimum of their relative speeds, mean completion time."""
        speeds = [self.speed(plan, j) for j in range(len(self.options.jobs))]
        placed = [s for s in speeds if s > 0]
        completion_s = [s for part in plan.slices if part.option for s in part.option.completion_s]
        return {
            "placed": len(placed),
            "speed_sum": sum(placed),
            "least_speed_ratio": min(placed, default=0.0),
            "mean_completion_s": float(np.mean(completion_s)) if placed else 0.0,
        }

    def card_json(self, plan: CardPlan) -> dict[str, Any]:
        """One way to use the card as a JSON object."""
        options = self.options
        return {
            "kind": plan.kind,
            "partition": plan.partition,
            "value": plan.value,
            **self.summary(plan),
            "slices": [
                {
                    "device": placed.device,
                    "start": placed.start,
                    "sharing": placed.option.sharing if placed.option else None,
                    "memory_bytes": placed.option.memory_bytes if placed.option else 0.0,
                    "jobs": [
                        {
                            "job": str(options.jobs[j].workload),
                            "sm_share_ratio": placed.option.sm_share_ratio[k],
                            "step_time_s": placed.option.step_time_s[k],
                            "speed_ratio": float(options.reference_s[j] / placed.option.step_time_s[k]),
                            "completion_s": placed.option.completion_s[k],
                        }
                        for k, j in enumerate(placed.option.members)
                    ]
                    if placed.option
                    else [],
                }
                for placed in plan.slices
            ],
            "waiting": [str(options.jobs[j].workload) for j in plan.waiting],
        }
