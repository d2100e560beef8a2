"""A process together with what it was conditioned on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.features import Floats
from predictor.learning.known_members import KnownMembers
from predictor.learning.observed import Observed
from predictor.learning.process import Process

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Observations behind the evidence of a process.

    Attributes:
        process: conditioned on them.
        seen: the observations; rows: [R] numbers of those that are its evidence, in its order, after training pairs.
        expected: [R] predicted for these, on the scale of `predictor.learning.link`.
        known: the members.
    """

    process: Process
    seen: Observed
    rows: Integers
    expected: Floats
    known: KnownMembers
