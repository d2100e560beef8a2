"""What a process says of members beside their partners, worked out once for each until something new is observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.basis import Label, bases_of
from predictor.learning.corrected import Basis, Shift
from predictor.learning.known_members import KnownMembers
from predictor.learning.observed import Observed
from predictor.learning.pair_answers import PairAnswers

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

_KEPT = 50_000
Key = tuple[int, ...]  # numbers of a member and of its partners, those ascending


class Shifts:
    """Of one state of a posterior.

    Args:
        pairs: of its process.
        known: the members that keys number.
        observed: what was observed.
        rows: numbers in `observed` of the rows that the process uses.
        labels: of rows of `observed` in words; grows.
    """

    def __init__(
        self,
        pairs: PairAnswers,
        known: KnownMembers,
        observed: Observed,
        rows: Integers,
        labels: dict[int, Label],
    ) -> None:
        self._pairs, self._known, self._observed = pairs, known, observed
        self._rows, self._labels = rows, labels
        self._noise = pairs.process.parameters.noise
        self._shifts: dict[Key, Shift] = {}

    def of(self, asked: Sequence[Key]) -> dict[Key, Shift]:
        """At least those that were asked for; a basis names the heaviest influence alone."""
        shifts = self._shifts
        new = [key for key in dict.fromkeys(asked) if key not in shifts]
        if not new:
            return shifts
        if len(shifts) > _KEPT:
            # Another object: who reads the old one goes on with it.
            shifts = self._shifts = {key: shifts[key] for key in asked if key in shifts}
        numbers, added = self._numbers(new)
        bases = bases_of(added, self._observed, self._rows, self._labels, most=1)
        for key, values, basis in zip(new, numbers.tolist(), bases, strict=True):
            excess, variance, prior_variance, solo, shrink = values
            shifts[key] = Shift(excess, variance, prior_variance, solo, shrink, basis)
        return shifts

    def basis(self, key: Key) -> Basis:
        """What a shift stands on, with all influences that are named."""
        return bases_of(self._numbers([key])[1], self._observed, self._rows, self._labels)[0]

    def _numbers(self, keys: Sequence[Key]) -> tuple[Floats, Floats]:
        """[R, 5] numbers of a `Shift`, and [R, used] what each used row of the evidence adds."""
        members = self._known.members
        partners = np.full((len(keys), max(1, max(len(key) for key in keys) - 1)), -1, dtype=np.int64)
        for row, key in enumerate(keys):
            partners[row, : len(key) - 1] = key[1:]
        own = np.array([key[0] for key in keys], dtype=np.int64)
        beside = self._pairs.beside(members, own, partners)
        added, solo, narrower = beside.added, np.zeros(len(keys)), np.ones(len(keys))
        # Where a solo step time was predicted: both in log step times, the excess as beside a typical slowdown, only to tell what weighs most.
        predicted = np.flatnonzero(self._known.solo_predicted[own])
        if len(predicted) and self._pairs.process.evidence.rows.solo.any():
            alone, noise = self._pairs.alone(members, own[predicted]), self._noise
            added[predicted] += alone.added
            solo[predicted] = alone.mean
            narrower[predicted] = np.sqrt((alone.variance + noise) / (alone.prior_variance + noise))
        return np.stack((beside.mean, beside.variance, beside.prior_variance, solo, narrower), 1), added
