"""`isacpp-slices`: partition every card from predictions alone, before a job has run anywhere.

When a job arrives, every partition (including ones such as 4+3 with empty slots) and every assignment is
evaluated on each card for the card's jobs and the waiting one, by the predicted seconds that all of them
still need plus the time lost by those that have to move. Jobs whose slice stays where it is keep running.
The job goes to the card where the sum grows least. When a job has left a card and none waits, the card is
repartitioned if that saves more than the moves cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from predictor.types import SetPredictor
from profiling.devices import mig_layout
from profiling.devices.mig import Partition
from profiling.workload import Workload
from scheduling.slices.cluster import Card, Reshape, SliceSnapshot, Slot, largest_slice
from scheduling.slices.policies.miso import SliceTimes

_MOST_CUTS = 200_000
# Seconds on a slice that the job does not fit on.
_NEVER = 1e15
_Place = tuple[str, int | None]
# Card, workloads, their current slots and remaining seconds; and the result: seconds, and the slot of each
# job.
_Key = tuple[str, tuple[Workload, ...], tuple[_Place | None, ...], tuple[float, ...]]
_Cut = tuple[float, tuple[tuple[str, int, int], ...]]


@dataclass(frozen=True, slots=True)
class IsacppSlices:
    """Predict first, then partition.

    Attributes:
        move_s: assumed cost of moving a job: saving, repartitioning, restarting.
        horizon_s: how long a partition is assumed to last, in seconds of a job alone on the fastest whole card;
            the cost of moves is weighed against the gain over that time.
        knows_length: whether the jobs' iterations may be read, so that a job that ends sooner counts only for
            its remaining time.
        fastest: seconds per step of each workload alone on the fastest whole card.
    """

    move_s: float = 12.0
    horizon_s: float = 600.0
    knows_length: bool = False
    name: str = "isacpp-slices"
    round_s: float | None = None
    blocking: bool = False
    times: SliceTimes = field(default_factory=SliceTimes, compare=False, repr=False)
    cuts: dict[_Key, _Cut | None] = field(default_factory=dict, compare=False, repr=False)
    fastest: dict[Workload, float | None] = field(default_factory=dict, compare=False, repr=False)

    def initial(self, device: str) -> tuple[Slot, ...]:
        return (Slot(largest_slice(device), 0),)

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        for job in snapshot.queue:
            best: tuple[float, int, tuple[Slot, ...]] | None = None
            for card in snapshot.cards:
                cut = self._cut(snapshot, belief, card, (*card.jobs, job))
                if cut is None:
                    continue
                added = cut[0] - self._now(snapshot, belief, card)
                if best is None or added < best[0] - 1e-9:
                    best = added, card.number, cut[1]
            if best is not None:
                return Reshape(best[1], best[2], drain=False)
        if snapshot.queue:
            return None  # a job waits, so keep free slots for it
        for card in snapshot.cards:
            if card.left and card.jobs and card.left_s <= snapshot.now_s - snapshot.report_s:
                cut = self._cut(snapshot, belief, card, card.jobs)
                stay = self._now(snapshot, belief, card)
                if cut is not None and cut[0] < stay - 1e-6:
                    return Reshape(card.number, cut[1], drain=False)
        return None

    def _left_s(self, snapshot: SliceSnapshot, belief: SetPredictor, job: int) -> float:
        """Seconds alone on the fastest whole card to consider: the horizon, or less if the job is known to end
        sooner."""
        if not self.knows_length:
            return self.horizon_s
        step = self._fastest_s(snapshot, belief, snapshot.jobs[job].job.workload)
        return self.horizon_s if step is None else min(snapshot.left(job) * step, self.horizon_s)

    def _ratio(self, snapshot: SliceSnapshot, belief: SetPredictor, device: str, job: int) -> float:
        """Time on a slice over that on the fastest whole card; very large if the job does not fit."""
        workload = snapshot.jobs[job].job.workload
        step = self.times.step_s(belief, device, workload)
        whole = self._fastest_s(snapshot, belief, workload)
        return _NEVER if step is None else step / (whole or step)

    def _fastest_s(self, snapshot: SliceSnapshot, belief: SetPredictor, workload: Workload) -> float | None:
        """Seconds per step alone on the fastest whole card of the cluster; None if it fits on none."""
        if workload not in self.fastest:
            whole = {card.device: largest_slice(card.device) for card in snapshot.cards}.values()
            steps = [s for d in whole if (s := self.times.step_s(belief, d, workload)) is not None]
            self.fastest[workload] = min(steps, default=None)
        return self.fastest[workload]

    def _now(self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card) -> float:
        """Predicted seconds that the jobs of a card still need if nothing changes."""
        return sum(
            self._left_s(snapshot, belief, job) * self._ratio(snapshot, belief, slot.device, job)
            for slot in card.slots
            for job in slot.jobs
        )

    def _cut(
        self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card, jobs: Sequence[int]
    ) -> tuple[float, tuple[Slot, ...]] | None:
        """The partition with the least predicted seconds for these jobs, moves included; None if they do not
        fit."""
        here = {job: slot.place for slot in card.slots for job in slot.jobs}
        left = tuple(self._left_s(snapshot, belief, job) for job in jobs)
        workloads = tuple(snapshot.jobs[job].job.workload for job in jobs)
        key = card.device, workloads, tuple(here.get(job) for job in jobs), left
        if key not in self.cuts:
            if len(self.cuts) >= _MOST_CUTS:
                self.cuts.clear()
            self.cuts[key] = self._search(snapshot, belief, key, jobs)
        cut = self.cuts[key]
        if cut is None:
            return None
        return cut[0], tuple(Slot(device, start, (jobs[at],)) for device, start, at in cut[1])

    def _search(
        self, snapshot: SliceSnapshot, belief: SetPredictor, key: _Key, jobs: Sequence[int]
    ) -> _Cut | None:
        """The best of all partitions with as many slices as jobs, each with its best assignment; None if none
        fits."""
        card, _, here, left = key
        layout = mig_layout(card)
        devices = {profile.name: layout.device(profile) for profile in layout.profiles}
        seconds = {
            name: np.array(left) * np.array([self._ratio(snapshot, belief, device, job) for job in jobs])
            for name, device in devices.items()
        }
        best: tuple[float, Partition, NDArray[np.intp]] | None = None
        for cut in layout.cuts(len(jobs)):
            cost = np.empty((len(jobs), len(jobs)))
            for column, (start, profile) in enumerate(cut.placements):
                place = devices[profile.name], start
                moves = np.array([was not in (None, place) for was in here])
                cost[:, column] = seconds[profile.name] + self.move_s * moves
            if best is not None and cost.min(axis=1).sum() >= best[0]:
                continue
            rows, columns = linear_sum_assignment(cost)
            total = float(cost[rows, columns].sum())
            if total < _NEVER and (best is None or total < best[0] - 1e-9):
                best = total, cut, columns
        if best is None:
            return None
        total, cut, columns = best
        job_at = {int(column): row for row, column in enumerate(columns)}
        return total, tuple(
            (devices[profile.name], start, job_at[k]) for k, (start, profile) in enumerate(cut.placements)
        )
