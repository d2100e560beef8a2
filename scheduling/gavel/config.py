"""Configuration of Gavel's policies and rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from profiling.errors import InputError
from scheduling.gavel.rounds import RoundConfig

OBJECTIVES = ("max-min", "max-sum", "finish-time", "fifo", "allox")
PACKABLE = ("max-min", "max-sum", "finish-time", "fifo")
BLIND = ("max-min", "finish-time", "fifo")


@dataclass(frozen=True, slots=True)
class GavelConfig:
    """Configuration of one of Gavel's policies.

    Attributes:
        objective: `max-min` (least attained service), `max-sum` (steps per second; jobs with a deadline get
            what they need for it), `finish-time` (lowest maximum rho), `fifo`, `allox`.
        packed: whether two jobs with the same number of GPUs may share them.
        blind: ignore the types' speeds; types are then offered in a random order.
        rounds: configuration of the rounds.
        decimals: number of decimals of shares; None: not rounded.
        too_small: steps per second of a job on a type with fewer GPUs than it takes.
        even: give jobs of equal speeds and GPUs equal shares: the centre of the optima, as an interior-point
            method would.
        first_free: give jobs the first free GPUs of a type, over any number of nodes; otherwise one node if
            possible.
        seed: seed of the blind variants' order of types.
    """

    objective: str = "max-min"
    packed: bool = False
    blind: bool = False
    rounds: RoundConfig = field(default_factory=RoundConfig)
    decimals: int | None = None
    too_small: float = 0.0
    even: bool = False
    first_free: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.even and self.packed:
            raise InputError("even shares need unpacked jobs", expected="even without packed", got="both")
        for name, allowed, asked in (
            ("objective", OBJECTIVES, True),
            ("objective of a packed policy", PACKABLE, self.packed),
            ("objective of a blind policy", BLIND, self.blind),
        ):
            if asked and self.objective not in allowed:
                raise InputError(
                    f"unknown {name}", expected="one of " + ", ".join(allowed), got=self.objective
                )

    def as_published(self) -> GavelConfig:
        """The same with the three artefacts of the public simulator's rounds."""
        return replace(self, rounds=replace(self.rounds, upstream=True))
