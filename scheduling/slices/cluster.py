"""Cards that are cut and shared: what a policy of slices sees, and what it may do."""

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
    """A slice of a card, or the whole card, and who runs there.

    Attributes:
        device: `a100:mig=3g`, or `a100` for the whole card.
        start: first memory slot; None for a whole card.
        jobs: numbers of the jobs.
        sharing: of several jobs: `time-slice` or `mps`.
        sm_share_ratio: most of the slot's multiprocessors that each job may use.
    """

    device: str
    start: int | None = None
    jobs: tuple[int, ...] = ()
    sharing: str = "time-slice"
    sm_share_ratio: float = 1.0

    @property
    def place(self) -> tuple[str, int | None]:
        """What has to be cut for it."""
        return self.device, self.start


@dataclass(frozen=True, slots=True)
class Card:
    """One card.

    Attributes:
        number: in the cluster's order.
        device: catalogue name.
        slots: how it is cut, empty slices included.
        checkpoint_s: when its jobs were last saved.
        profile_until_s: until when its jobs are observed together (MISO); None where they are not.
        left: jobs that finished since it was last reshaped; left_s: when the last of them did.
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
    """Cut a card anew, or only place jobs on it.

    Attributes:
        slots: how the card is to be, jobs included; jobs of the card that stand in none of them go back to the queue.
        drain: all jobs of the card are saved and restarted; otherwise only those whose slot changes.
        profile_s: for so long its jobs are to be observed.
        reason: in words.
    """

    card: int
    slots: tuple[Slot, ...]
    drain: bool = True
    profile_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SliceSnapshot:
    """Cards, queue and jobs at one moment.

    Attributes:
        queue: numbers of waiting jobs, in order of arrival.
        jobs: by number; policies read them only.
        woke_s, woke_before_s: when the controller woke, and the time before.
        report_s: so much later than a job ends it hears of it.
    """

    now_s: float
    cards: tuple[Card, ...]
    queue: tuple[int, ...]
    jobs: dict[int, JobState] = field(repr=False)
    woke_s: float = 0.0
    woke_before_s: float = NEVER_S
    report_s: float = 0.0

    def left(self, number: int) -> float:
        """Iterations that a job has left now."""
        job = self.jobs[number]
        running_s = self.now_s - max(job.updated_s, job.resume_s)
        return max(job.left - job.rate * max(running_s, 0.0), 0.0)


class SlicePolicy(Protocol):
    """Decides about cards one at a time.

    Attributes:
        round_s: the controller wakes every so many seconds; None: whenever a job arrives or leaves.
        blocking: while a card is saved and cut the controller does nothing else.
    """

    name: str
    round_s: float | None
    blocking: bool

    def initial(self, device: str) -> tuple[Slot, ...]:
        """How a card is cut before the first job comes."""
        ...

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        """The next thing to do now, or None. Asked again after each until there is nothing."""
        ...


def largest_slice(card: str) -> str:
    """The device that takes all of a card in MIG mode: `a100:mig=7g`."""
    layout = mig_layout(card)
    return layout.device(layout.profiles[-1])


def without_jobs(slots: Iterable[Slot]) -> tuple[tuple[str, int | None], ...]:
    """The cut alone, for comparison."""
    return tuple(slot.place for slot in slots)
