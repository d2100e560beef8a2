"""`mps`: up to three jobs per card under MPS with a third of it each, on the first card with room.

This is the baseline of MISO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.types import SetPredictor
from scheduling.slices.cluster import Reshape, SliceSnapshot, Slot


@dataclass(frozen=True, slots=True)
class Mps:
    """The first card with room takes the head of the queue. Memory is ignored, as in MISO's baseline.

    Attributes:
        most: maximum number of jobs per card.
        sm_share_ratio: SM share of each job.
    """

    most: int = 3
    sm_share_ratio: float = 0.33
    name: str = "mps"
    round_s: float | None = 10.0
    blocking: bool = True

    def initial(self, device: str) -> tuple[Slot, ...]:
        return (Slot(device, sharing="mps", sm_share_ratio=self.sm_share_ratio),)

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:  # noqa: ARG002 (required by the protocol)
        card = next((card for card in snapshot.cards if len(card.jobs) < self.most), None)
        if not snapshot.queue or card is None:
            return None
        slot = card.slots[0]
        return Reshape(card.number, (replace(slot, jobs=(*slot.jobs, snapshot.queue[0])),), drain=False)
