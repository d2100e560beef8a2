"""`miso` and `oracle`: the partition with the least mean relative time, chosen whenever a card's jobs change.

After Li et al., "MISO: Exploiting Multi-Instance GPU Capability on Multi-Tenant GPU Clusters", SoCC 2022, and
its public controllers. `oracle` knows every job's time on every slice; `miso` observes a card's jobs together
under MPS for a while whenever one joins, then partitions the card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations

from predictor.types import SetPredictor
from profiling.devices import has_mig, mig_layout
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload
from scheduling.slices.cluster import Card, Reshape, SliceSnapshot, Slot, largest_slice

# The partitions of the published controllers, by slice size; none contains 4+3 or an empty slice.
MISO_PARTITIONS = (
    (7,),
    (4, 2, 1),
    (4, 1, 1, 1),
    (3, 3),
    (3, 2, 1),
    (3, 1, 1, 1),
    (3, 2, 2),
    (3, 2, 1, 1),
    (3, 1, 1, 1, 1),
    (2, 2, 2, 1),
    (2, 2, 1, 1, 1),
    (2, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 1, 1),
)


@dataclass(slots=True)
class SliceTimes:
    """A belief's step times of jobs alone on the slices of a card, cached."""

    known: dict[tuple[str, Workload], float | None] = field(default_factory=dict)

    def step_s(self, belief: SetPredictor, device: str, workload: Workload) -> float | None:
        """Return the step time, or None if the job does not fit."""
        key = device, workload
        if key not in self.known:
            devices = mig_layout(device.partition(":")[0]).devices
            arrays = belief.predict_arrays([ColocationSet(d, (workload,)) for d in devices])
            for row, name in enumerate(devices):
                self.known[name, workload] = float(arrays.step_time_s[row, 0]) if arrays.fits[row] else None
        return self.known[key]


@dataclass(frozen=True, slots=True)
class Oracle:
    """MISO's rules with all job times known in advance.

    A job goes to the card with the fewest jobs that has room for it. When a job leaves and none waits, the
    remaining jobs are reassigned to the card's slices. While a card is saved and repartitioned, the
    controller is blocked.

    A card without MIG, beside others that have it, runs one job at a time.

    Attributes:
        settle_s: minimum time after saving a card before it is changed again.
    """

    settle_s: float = 3.0
    name: str = "oracle"
    round_s: float | None = 10.0
    blocking: bool = True
    times: SliceTimes = field(default_factory=SliceTimes, compare=False, repr=False)

    def initial(self, device: str) -> tuple[Slot, ...]:
        if not has_mig(device):
            return (Slot(device),)
        largest = largest_slice(device)
        if not largest.endswith("=7g"):
            raise InputError(
                f"policy {self.name} only partitions cards with seven slices",
                expected="cards such as a100, or without MIG",
                got=device,
                hint="isacpp-slices and static-mig take every card with MIG",
            )
        return (Slot(largest, 0),)

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        return self._admit(snapshot, belief) if snapshot.queue else self._fill(snapshot, belief)

    def _admit(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        """Place the head of the queue on the card with the fewest jobs that has room."""
        job = snapshot.queue[0]
        for card in sorted(snapshot.cards, key=lambda c: (len(c.jobs), c.number)):
            if not self._room(snapshot, belief, card, job):
                continue
            if self._touched(snapshot, card) or (card.jobs and card.left_s > snapshot.woke_before_s):
                return None  # a job has just left; the controller checks again on its next wake-up
            return self._join(snapshot, belief, card, (*card.jobs, job))
        return None

    def _join(
        self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card, jobs: tuple[int, ...]
    ) -> Reshape | None:
        slots = self.best(snapshot, belief, card, jobs)
        return None if slots is None else Reshape(card.number, slots)

    def _fill(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        """Reassign the remaining jobs of a card that a job has left."""
        for card in snapshot.cards:
            if not card.left or not card.jobs or self._touched(snapshot, card):
                continue
            if card.left_s > snapshot.woke_s - snapshot.report_s:
                continue  # the controller had not learned of it when it last woke up (`is_known` asks about now)
            slots = self.best(snapshot, belief, card, card.jobs)
            if slots is not None:
                return Reshape(card.number, slots)
        return None

    def _touched(self, snapshot: SliceSnapshot, card: Card) -> bool:
        return snapshot.now_s - card.checkpoint_s < self.settle_s or card.profile_until_s is not None

    def _room(self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card, job: int) -> bool:
        """Whether some partition has the smallest slice of every job here, and one large enough for the new
        job."""
        if not card.jobs:
            return self.best(snapshot, belief, card, (job,)) is not None
        if not has_mig(card.device):
            return False
        least = [self._least(snapshot, belief, card, j) for j in card.jobs]
        new = self._least(snapshot, belief, card, job)
        for partition in MISO_PARTITIONS:
            free = Counter(partition)
            free.subtract(least)
            if min(free.values()) >= 0 and any(size >= new and free[size] > 0 for size in free):
                return True
        return False

    def _least(self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card, job: int) -> int:
        """Size in compute slices of the smallest slice that the job fits on; 99 if it fits on none."""
        workload = snapshot.jobs[job].job.workload
        sizes = (
            size
            for size in (1, 2, 3, 4, 7)
            if self.times.step_s(belief, f"{card.device}:mig={size}g", workload) is not None
        )
        return next(sizes, 99)

    def best(
        self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card, jobs: Sequence[int]
    ) -> tuple[Slot, ...] | None:
        """Find the partition and assignment with the least mean of t(slice) / t(7g), one slice per job.

        A card without MIG takes one job.
        """
        if not has_mig(card.device):
            uncut = ColocationSet(card.device, (snapshot.jobs[jobs[0]].job.workload,))
            fits = len(jobs) == 1 and bool(belief.predict_arrays([uncut]).fits[0])
            return (Slot(card.device, jobs=tuple(jobs)),) if fits else None
        ratio = {}
        for job in jobs:
            workload = snapshot.jobs[job].job.workload
            whole = self.times.step_s(belief, f"{card.device}:mig=7g", workload)
            for size in (1, 2, 3, 4, 7):
                step = self.times.step_s(belief, f"{card.device}:mig={size}g", workload)
                ratio[job, size] = float("inf") if step is None or whole is None else step / whole
        best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
        for partition in MISO_PARTITIONS:
            if len(partition) != len(jobs):
                continue
            for order in _orders(tuple(jobs), partition):
                total = sum(ratio[job, size] for job, size in zip(order, partition, strict=True))
                if total < float("inf") and (best is None or total < best[0] - 1e-12):
                    best = total, partition, order
        return None if best is None else _slots(card.device, best[1], best[2])


@dataclass(frozen=True, slots=True)
class Miso(Oracle):
    """Like `oracle`, with predicted times, and a joint observation under MPS before a job joins others.

    Attributes:
        profile_s: seconds of observation.
        profile_share: SM share of each job during it.
    """

    profile_s: float = 30.0
    profile_share: float = 0.5
    name: str = "miso"

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        admitted = self._admit(snapshot, belief) if snapshot.queue else None
        if admitted is not None:
            return admitted
        for card in snapshot.cards:
            if card.profile_until_s is not None and card.profile_until_s <= snapshot.now_s:
                # If all have ended meanwhile, the card must be cut as at first to take others.
                slots = (
                    self.best(snapshot, belief, card, card.jobs) if card.jobs else self.initial(card.device)
                )
                if slots is not None:
                    return Reshape(card.number, slots)
        return None if snapshot.queue else self._fill(snapshot, belief)

    def _room(self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card, job: int) -> bool:
        return card.profile_until_s is None and Oracle._room(self, snapshot, belief, card, job)

    def _join(
        self, snapshot: SliceSnapshot, belief: SetPredictor, card: Card, jobs: tuple[int, ...]
    ) -> Reshape | None:
        if len(jobs) == 1 or self.best(snapshot, belief, card, jobs) is None:
            return Oracle._join(self, snapshot, belief, card, jobs)
        together = Slot(card.device, None, jobs, "mps", self.profile_share)
        return Reshape(card.number, (together,), profile_s=self.profile_s)


@lru_cache(maxsize=256)
def _distinct(partition: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Permutations of positions that differ in which position gets which size."""
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    for order in permutations(range(len(partition))):
        given = tuple(partition[order.index(k)] for k in range(len(partition)))
        seen.setdefault(given, order)
    return tuple(seen.values())


def _orders(jobs: tuple[int, ...], partition: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for order in _distinct(partition):
        yield tuple(jobs[k] for k in order)


def _slots(device: str, partition: tuple[int, ...], jobs: Sequence[int]) -> tuple[Slot, ...]:
    """Slots, in slot order, for slices of these sizes (largest first) and the job of each."""
    layout = mig_layout(device)
    placed = layout.place([f"{size}g" for size in partition])
    assert placed is not None
    waiting = list(zip(partition, jobs, strict=True))
    slots = []
    for start, profile in placed.placements:
        at = next(k for k, (size, _) in enumerate(waiting) if size == profile.compute_slices)
        slots.append(Slot(layout.device(profile), start, (waiting.pop(at)[1],)))
    return tuple(slots)
