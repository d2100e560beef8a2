"""`full`: one job per card, first idle card, first come first served."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.types import SetPredictor
from scheduling.slices.cluster import Reshape, SliceSnapshot, Slot


@dataclass(frozen=True, slots=True)
class Full:
    """Whole cards, as in a cluster without sharing."""

    name: str = "full"
    round_s: float | None = 10.0
    blocking: bool = True

    def initial(self, device: str) -> tuple[Slot, ...]:
        return (Slot(device),)

    def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:  # noqa: ARG002 (required by the protocol)
        idle = next((card for card in snapshot.cards if not card.jobs), None)
        if not snapshot.queue or idle is None:
            return None
        return Reshape(idle.number, (Slot(idle.device, jobs=snapshot.queue[:1]),), drain=False)
