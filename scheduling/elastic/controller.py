"""Chooses the prefix that a running job freezes next: argmax of throughput times (1 - penalty), with
guards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from predictor.types import Floats
from profiling.errors import InputError
from scheduling.elastic.penalty import FreezingGuards, allowed_changes, frozen_penalty


def best_prefix(
    throughput: Floats,
    norm_share: Floats,
    progress: float,
    debt: float,
    guards: FreezingGuards,
    current: int = 0,
    min_gain: float = 0.02,
) -> int:
    """Index of the best candidate prefix; keeps `current` unless another gains at least `min_gain`.

    Args:
        throughput: [K] samples per second of each candidate, 0 if it does not fit.
        norm_share: [K] S_k of each candidate; the first freezes nothing.
        progress, debt: effective progress from 0 to 1, and the penalty integrated over it.
        guards: limits on freezing.
        current: index of the current prefix.
        min_gain: relative gain required for a change.
    """
    allowed = allowed_changes(norm_share, progress, debt, guards, np.arange(len(norm_share)) == current)
    rate = np.where(allowed, throughput * (1.0 - frozen_penalty(norm_share, guards.kappa)), -1.0)
    best = int(np.argmax(rate))
    stays = bool(allowed[current]) and rate[best] < (1.0 + min_gain) * rate[current]
    return current if stays else best


@dataclass
class FreezingController:
    """Tracks one job's progress and debt, and decides its prefix in every round.

    Attributes:
        throughput: [L] samples per second with frozen prefixes 0..L-1 (predicted or measured beforehand).
        total_iterations: unfrozen iterations that the job wants.
        progress: effective progress, 0 to 1.
        debt: integral of the penalty over progress.
        learning_rate: highest seen since the last drop; a drop by half or more unfreezes for a warm-up.
    """

    throughput: Floats
    total_iterations: float
    guards: FreezingGuards = field(default_factory=FreezingGuards)
    min_gain: float = 0.02
    progress: float = 0.0
    debt: float = 0.0
    learning_rate: float = 0.0
    thaw_until: float = 0.0
    frozen_prefix: int = 0

    def __post_init__(self) -> None:
        if not self.total_iterations > 0:
            raise InputError("total_iterations", expected="a number above 0", got=self.total_iterations)

    def advance(self, iterations: float, norm_shares: Floats) -> float:
        """Account for iterations run with the current prefix; returns the effective progress."""
        penalty = float(frozen_penalty(norm_shares[self.frozen_prefix], self.guards.kappa))
        gained = iterations / self.total_iterations * (1.0 - penalty)
        self.progress = min(self.progress + gained, 1.0)
        self.debt += penalty * gained
        return self.progress

    def decide(self, norm_shares: Floats, learning_rate: float = 0.0) -> int:
        """The prefix from now on; `norm_shares` is the tracker's [L + 1]."""
        if learning_rate > 0:
            if learning_rate <= 0.5 * self.learning_rate:
                self.thaw_until = self.progress + 0.5 * self.guards.warmup_progress
                self.learning_rate = learning_rate
            self.learning_rate = max(self.learning_rate, learning_rate)
        if self.progress < self.thaw_until:
            self.frozen_prefix = 0
        else:
            shares = norm_shares[: len(self.throughput)]
            self.frozen_prefix = best_prefix(
                self.throughput,
                shares,
                self.progress,
                self.debt,
                self.guards,
                self.frozen_prefix,
                self.min_gain,
            )
        return self.frozen_prefix

    def state_dict(self) -> dict[str, Any]:
        """State that must survive a restart."""
        names = ("progress", "debt", "learning_rate", "thaw_until", "frozen_prefix")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("progress", "debt", "learning_rate", "thaw_until"):
            setattr(self, name, float(state[name]))
        self.frozen_prefix = int(state["frozen_prefix"])
