"""`static-mig`: every card has a fixed partition."""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.types import SetPredictor
from profiling.devices import get_device, has_mig, mig_layout
from profiling.errors import InputError, UnknownNameError
from profiling.workload import ColocationSet
from scheduling.slices.cluster import Card, Reshape, SliceSnapshot, Slot


@dataclass(frozen=True, slots=True)
class StaticMig:
    """A job takes the largest idle slice of the cluster if it fits there; later jobs may overtake one that
    does not.

    Jobs on the smallest slices move to larger ones of the same card that become idle.

    Attributes:
        partition: slices of each card, e.g. `3g+2g+2g`.
    """

    partition: str = "3g+2g+2g"
    name: str = "static-mig"
    round_s: float | None = 10.0
    blocking: bool = True

    def initial(self, device: str) -> tuple[Slot, ...]:
        check_mig(self.name, device)
        layout = mig_layout(device)
        try:
            partition = layout.place(self.partition.split("+"))
        except UnknownNameError:  # other cards have such a slice
            partition = None
        if partition is None:
            raise InputError(
                f"{device} does not support this partition",
                expected="slices of one of " + ", ".join(map(str, layout.maximal)),
                got=self.partition,
                hint=f"--policy static-mig:{layout.maximal[-1]}, or static-mig:best to try all; beside cards of other "
                "types, isacpp-slices partitions each by its own",
            )
        return tuple(Slot(layout.device(profile), start) for start, profile in partition.placements)

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
        idle = [
            (card, index)
            for card in snapshot.cards
            if snapshot.queue and snapshot.is_known(card)
            for index, slot in enumerate(card.slots)
            if not slot.jobs
        ]
        if idle:
            card, index = max(idle, key=lambda at: _size(at[0].slots[at[1]]))  # the first of equal ones
            for job in snapshot.queue:
                workload = snapshot.jobs[job].job.workload
                if belief.predict_arrays([ColocationSet(card.slots[index].device, (workload,))]).fits[0]:
                    return Reshape(card.number, _with(card, {index: (job,)}), drain=False)
        for card in snapshot.cards:
            move = _upward(card)
            if move is not None:
                smaller, larger = move
                slots = _with(card, {larger: card.slots[smaller].jobs, smaller: ()})
                return Reshape(card.number, slots, drain=False)
        return None


def check_mig(policy: str, device: str) -> None:
    """Raise `InputError` if `device` is not a whole card that can be partitioned."""
    if not has_mig(device):
        raise InputError(
            f"policy {policy} partitions every card",
            expected="whole cards with MIG, such as a100",
            got=device,
            hint="isacpp-slices, miso and oracle also take cards without MIG and slices, each as one GPU",
        )


def _upward(card: Card) -> tuple[int, int] | None:
    """The smallest busy slice and the largest idle one if the latter is larger."""
    busy = [k for k, slot in enumerate(card.slots) if slot.jobs]
    if not busy or len(busy) == len(card.slots):
        return None
    smaller = min(busy, key=lambda k: _size(card.slots[k]))
    idle = [k for k in range(len(card.slots)) if k not in busy]
    larger = max(idle, key=lambda k: _size(card.slots[k]))
    return (smaller, larger) if _size(card.slots[larger]) > _size(card.slots[smaller]) else None


def _size(slot: Slot) -> tuple[int, float]:
    # An A100's `1g.10gb` has no more multiprocessors than its `1g`.
    device = get_device(slot.device)
    return device.sm_count, device.memory_bytes


def _with(card: Card, jobs: dict[int, tuple[int, ...]]) -> tuple[Slot, ...]:
    return tuple(replace(s, jobs=jobs[k]) if k in jobs else s for k, s in enumerate(card.slots))
