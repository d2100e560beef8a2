"""`isacpp-slices`: partition every card from predictions alone, before a job has run anywhere.

When a job arrives, every partition (including ones such as 4+3 with empty slots) and every assignment is
evaluated on each card for the card's jobs and the waiting one, by the predicted seconds that all of them
still need plus the time lost by those that have to move. A slice may hold several jobs under MPS if they fit
in its memory. Jobs whose slice stays where it is keep running. The job goes to the card where the sum grows
least. If it would have to share because every card is full, it waits instead if the jobs are predicted to need
fewer seconds then. When a job has left a card and none waits, the card is repartitioned if that saves more
than the moves cost. A card without MIG is one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from predictor.types import SetPredictor
from profiling.devices import has_mig
from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.slices.cluster import Card, Reshape, SliceSnapshot, Slot, largest_slice
from scheduling.slices.exact import MAX_JOBS
from scheduling.slices.placing import Place, least_seconds, places_of
from scheduling.slices.set_times import SetTimes

_MOST_CUTS = 200_000
# Card, numbers of the workloads, their current slots and remaining seconds, most jobs per slice; and the result:
# seconds, and the jobs of each slot.
_Key = tuple[str, tuple[int, ...], tuple[Place | None, ...], tuple[float, ...], int]
_Cut = tuple[float, tuple[tuple[Place, tuple[int, ...]], ...]]


@dataclass(frozen=True, slots=True)
class IsacppSlices:
    """Predict first, then partition.

    Attributes:
        move_s: assumed cost of moving a job: saving, repartitioning, restarting.
        horizon_s: how long a partition is assumed to last, in seconds of a job alone on the fastest whole card;
            the cost of moves is weighed against the gain over that time.
        knows_length: whether the jobs' iterations may be read, so that a job that ends sooner counts only for
            its remaining time.
        most_per_slice: most jobs on a slice; 1: never shared.
        most_per_card: most jobs on a card.
    """

    move_s: float = 12.0
    horizon_s: float = 600.0
    knows_length: bool = False
    most_per_slice: int = 3
    most_per_card: int = 8
    name: str = "isacpp-slices"
    round_s: float | None = None
    blocking: bool = False
    times: SetTimes = field(default_factory=SetTimes, compare=False, repr=False)
    cuts: dict[_Key, _Cut | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.most_per_slice < 1:
            raise InputError(
                "most_per_slice is out of range", expected="an integer from 1", got=self.most_per_slice
            )
        if not 1 <= self.most_per_card <= MAX_JOBS:
            raise InputError(
                "most_per_card is out of range",
                expected=f"an integer from 1 to {MAX_JOBS}",
                got=self.most_per_card,
            )

    def initial(self, device: str) -> tuple[Slot, ...]:
        return (Slot(largest_slice(device), 0),) if has_mig(device) else (Slot(device),)

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        self.times.ask(belief, [card.device for card in snapshot.cards])
        for job in snapshot.queue:
            best = self._best(snapshot, job, self.most_per_slice)
            if best is None:
                continue
            added, chosen, slots = best
            if (
                any(len(slot.jobs) > 1 for slot in slots)
                and self._best(snapshot, job, 1) is None
                and added > self._waiting_s(snapshot, job)
            ):
                continue
            return Reshape(chosen, slots, drain=False)
        if snapshot.queue:
            return None  # a job waits, so keep free slots for it
        for card in snapshot.cards:
            if card.left and card.jobs and snapshot.is_known(card):
                cut = self._cut(snapshot, card, card.jobs, self.most_per_slice)
                if cut is not None and cut[0] < self._now_s(snapshot, card) - 1e-6:
                    return Reshape(card.number, cut[1], drain=False)
        return None

    def _best(
        self, snapshot: SliceSnapshot, job: int, largest: int
    ) -> tuple[float, int, tuple[Slot, ...]] | None:
        """The card on which a job adds the fewest seconds, with its slots; None if it fits on none."""
        best: tuple[float, int, tuple[Slot, ...]] | None = None
        empty: set[str] = set()
        for card in snapshot.cards:
            if not snapshot.is_known(card):
                continue
            if not card.jobs:  # empty cards are alike, however partitioned, so the first will do
                if card.device in empty:
                    continue
                empty.add(card.device)
            cut = self._cut(snapshot, card, (*card.jobs, job), largest)
            if cut is None:
                continue
            added = cut[0] - self._now_s(snapshot, card)
            if best is None or added < best[0] - 1e-9:
                best = added, card.number, cut[1]
        return best

    def _waiting_s(self, snapshot: SliceSnapshot, job: int) -> float:
        """Seconds that a job and the queue need if it starts when another has ended.

        It then runs as fast as the running jobs do now. If all last equally long, one of N ends after 1/N of their
        time, for which every job in the queue waits.
        """
        running = [n for card in snapshot.cards for n in card.jobs]
        now_s = sum(self._now_s(snapshot, card) for card in snapshot.cards)
        left_s = sum(self._left_s(snapshot, n) for n in running)
        turn_s = now_s / len(running) ** 2
        pace = now_s / left_s if left_s else 1.0  # if all end at this very moment
        return pace * self._left_s(snapshot, job) + len(snapshot.queue) * turn_s

    def _left_s(self, snapshot: SliceSnapshot, job: int) -> float:
        """Seconds alone on the fastest whole card to consider: the horizon, or less if the job is known to end
        sooner."""
        if not self.knows_length:
            return self.horizon_s
        step = self.times.fastest_s(_workload(snapshot, job))
        return self.horizon_s if step is None else min(snapshot.left(job) * step, self.horizon_s)

    def _now_s(self, snapshot: SliceSnapshot, card: Card) -> float:
        """Predicted seconds that the jobs of a card still need if nothing changes."""
        return sum(
            self._left_s(snapshot, job) * ratio
            for slot in card.slots
            if slot.jobs
            for job, ratio in zip(
                slot.jobs,
                self.times.ratios(slot.device, tuple(_workload(snapshot, job) for job in slot.jobs)),
                strict=True,
            )
        )

    def _cut(
        self, snapshot: SliceSnapshot, card: Card, jobs: Sequence[int], largest: int
    ) -> tuple[float, tuple[Slot, ...]] | None:
        """The partition with the fewest predicted seconds for these jobs, moves included; None if they do not
        fit."""
        if len(jobs) > self.most_per_card:
            return None
        here = {job: slot.place for slot in card.slots for job in slot.jobs}
        left = tuple(self._left_s(snapshot, job) for job in jobs)
        numbers = tuple(self.times.number(_workload(snapshot, job)) for job in jobs)
        key = card.device, numbers, tuple(here.get(job) for job in jobs), left, largest
        if key not in self.cuts:
            if len(self.cuts) >= _MOST_CUTS:
                self.cuts.clear()
            self.cuts[key] = self._search(key)
        cut = self.cuts[key]
        if cut is None:
            return None
        return cut[0], tuple(
            Slot(device, start, tuple(jobs[k] for k in members), "mps" if len(members) > 1 else "time-slice")
            for (device, start), members in cut[1]
        )

    def _search(self, key: _Key) -> _Cut | None:
        """The best partition and assignment; None if none fits."""
        card, numbers, here, left, largest = key
        jobs = len(numbers)
        places = places_of(card)
        devices = tuple(dict.fromkeys(device for device, _ in places))
        on = dict(zip(devices, self.times.seconds(devices, numbers, left, largest), strict=True))
        members = np.arange(1 << jobs)[:, None] >> np.arange(jobs) & 1
        seconds = {}
        for place in places:
            moved = np.array([was not in (None, place) for was in here])
            seconds[place] = on[place[0]] + self.move_s * (members @ moved)
        return least_seconds(card, seconds, jobs, largest)


def _workload(snapshot: SliceSnapshot, job: int) -> Workload:
    return snapshot.jobs[job].job.workload
