"""Partitioned and shared cards: the view and the actions of slice policies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from predictor.types import SetPredictor
from profiling.devices import mig_layout
from scheduling.core.job import JobState

NEVER_S = -1e30


@dataclass(frozen=True, slots=True)
class Slot:
    """A slice of a card, or the whole card, with its jobs.

    Attributes:
        device: `a100:mig=3g`, or `a100` for the whole card.
        start: first memory slot; None for a whole card.
        jobs: numbers of the jobs.
        sharing: how several jobs share the slot: `time-slice` or `mps`.
        sm_share_ratio: maximum share of the slot's multiprocessors that each job may use.
    """

    device: str
    start: int | None = None
    jobs: tuple[int, ...] = ()
    sharing: str = "time-slice"
    sm_share_ratio: float = 1.0

    @property
    def place(self) -> tuple[str, int | None]:
        """Device and first memory slot, i.e. the slice that has to be created."""
        return self.device, self.start


@dataclass(frozen=True, slots=True)
class Card:
    """One card.

    Attributes:
        number: position in the cluster.
        device: catalogue name.
        slots: its partition, including empty slices.
        checkpoint_s: when its jobs were last saved.
        profile_until_s: end of the joint observation of its jobs (MISO); None if not observed.
        left: jobs that have finished since the card was last repartitioned.
        left_s: when the last of them finished.
    """

    number: int
    device: str
    slots: tuple[Slot, ...]
    checkpoint_s: float = NEVER_S
    profile_until_s: float | None = None
    left: int = 0
    left_s: float = NEVER_S

    @property
    def jobs(self) -> tuple[int, ...]:
        return tuple(job for slot in self.slots for job in slot.jobs)


@dataclass(frozen=True, slots=True)
class Reshape:
    """Repartition a card, or only place jobs on it.

    Attributes:
        slots: the new partition with its jobs; current jobs in none of them go back to the queue.
        drain: all jobs of the card are saved and restarted; otherwise only those whose slot changes.
        profile_s: how long to observe its jobs.
    """

    card: int
    slots: tuple[Slot, ...]
    drain: bool = True
    profile_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SliceSnapshot:
    """Cards, queue and jobs at one moment.

    Attributes:
        queue: numbers of waiting jobs, in order of arrival.
        jobs: states by job number; read-only for policies.
        woke_s, woke_before_s: last and second-to-last time at which the controller woke up.
        report_s: delay until the controller learns that a job has ended.
    """

    now_s: float
    cards: tuple[Card, ...]
    queue: tuple[int, ...]
    jobs: dict[int, JobState] = field(repr=False)
    woke_s: float = 0.0
    woke_before_s: float = NEVER_S
    report_s: float = 0.0

    def is_known(self, card: Card) -> bool:
        """Whether the controller has learned of every job that has left a card."""
        return self.now_s - card.left_s >= self.report_s - 1e-6  # clocks add up to that only nearly

    def left(self, number: int) -> float:
        """Iterations a job has left now."""
        job = self.jobs[number]
        running_s = self.now_s - max(job.updated_s, job.resume_s)
        return max(job.left - job.rate * max(running_s, 0.0), 0.0)


class SlicePolicy(Protocol):
    """Decides about cards one at a time.

    Attributes:
        round_s: seconds between wake-ups of the controller; None: whenever a job arrives or leaves.
        blocking: whether the controller is blocked while a card is saved and repartitioned.
    """

    name: str
    round_s: float | None
    blocking: bool

    def initial(self, device: str) -> tuple[Slot, ...]:
        """Initial partition of a card."""
        ...

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        """The next action, or None. Called again after each until None."""
        ...


def largest_slice(card: str) -> str:
    """Return the slice that covers a whole card in MIG mode: `a100:mig=7g`."""
    layout = mig_layout(card)
    return layout.device(layout.profiles[-1])


def without_jobs(slots: Iterable[Slot]) -> tuple[tuple[str, int | None], ...]:
    """Return the partition without its jobs, for comparison."""
    return tuple(slot.place for slot in slots)
