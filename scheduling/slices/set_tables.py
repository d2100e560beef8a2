"""The options of every set of jobs on every slice of a card, as tables by bit mask for the exact search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from profiling.devices.mig import MigLayout
from scheduling.slices.exact import NONE
from scheduling.slices.options import Options, mask_of

# Predictions are in single precision, so least speeds that differ by less are equal.
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class SetTables:
    """The options that fit, sorted by slice and mask, the most valuable first.

    Attributes:
        names: of the slices (`MigProfile.name`).
        sorted_rows: [N] rows in the options' columns.
        place: [N] slice times 2^jobs plus mask.
    """

    options: Options
    names: tuple[str, ...]
    sorted_rows: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, options: Options, layout: MigLayout) -> SetTables:
        count, columns = 1 << len(options.jobs), options.columns
        number = {name: k for k, name in enumerate(layout.devices)}
        device = np.array([number.get(name, -1) for name in columns.device], np.int64)
        rows = np.flatnonzero((device >= 0) & columns.fits)
        place = device[rows] * count + np.array([mask_of(columns.members[row]) for row in rows], np.int64)
        order = np.lexsort((-columns.least_speed[rows], -columns.value[rows], place))
        return cls(options, tuple(p.name for p in layout.profiles), rows[order], place[order])

    def rows(self, floor: float = 0.0) -> dict[str, NDArray[np.int64]]:
        """For each slice and mask the row of the most valuable option whose least speed is at least `floor`; -1 if
        there is none."""
        place, rows = self._best(floor)
        return self._table(place, rows, -1)

    def values(self, floor: float = 0.0) -> dict[str, Floats]:
        """The values of these options; 0 for the empty set, -inf if there is none."""
        place, rows = self._best(floor)
        return self._table(place, self.options.columns.value[rows], NONE, empty=0.0)

    def least(self) -> dict[str, Floats]:
        """For each slice and mask the least speed of its fairest option; inf for the empty set, -inf if none fits."""
        least = self.options.columns.least_speed[self.sorted_rows]
        order = np.lexsort((-least, self.place))
        first = _first_of_each(self.place[order])
        return self._table(self.place[order][first], least[order][first], NONE, empty=np.inf)

    def _best(self, floor: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        above = self.options.columns.least_speed[self.sorted_rows] >= floor * (1 - _TIE)
        place, rows = self.place[above], self.sorted_rows[above]
        first = _first_of_each(place)
        return place[first], rows[first]

    def _table(
        self, place: NDArray[np.int64], values: NDArray[Any], missing: float, empty: float | None = None
    ) -> dict[str, NDArray[Any]]:
        count = 1 << len(self.options.jobs)
        flat = np.full(len(self.names) * count, missing, values.dtype)
        if empty is not None:
            flat[::count] = empty
        flat[place] = values
        return dict(zip(self.names, flat.reshape(len(self.names), count), strict=True))


def _first_of_each(place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each number begins in a sorted array."""
    return np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else np.zeros(0, np.int64)
