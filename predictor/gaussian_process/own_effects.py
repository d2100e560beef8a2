"""Effects of jobs whose observations are implausible as a whole: of each for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.job_keys import JOBS, keys_of, places_among
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.rows import Rows
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


class OwnEffects:
    """Independent effects of P jobs, each on its own rows only.

    Args:
        variances: by setting and job.

    Attributes:
        names: setting and job of each.
        deviation: [P] standard deviations.
    """

    def __init__(self, variances: Mapping[tuple[int, int], float] | None = None) -> None:
        self._variances = dict(sorted((variances or {}).items()))
        self.names = list(self._variances)
        self.deviation = np.sqrt(np.array(list(self._variances.values()), dtype=np.float64))
        self._keys = np.array([setting * JOBS + job for setting, job in self.names], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnEffects) and self._variances == other._variances

    __hash__ = None  # type: ignore[assignment]

    def numbers(self, members: Members, own: Integers) -> Integers:
        """[R] number of each member's effect, -1 if it has none."""
        return places_among(self._keys, keys_of(members, own))

    def columns(self, members: Members, rows: Rows) -> Floats:
        """[R, P] loadings of rows on the effects, each of unit variance.

        A member without partners has none: alone, such an effect is a fault of the measurement and says nothing of
        the job.
        """
        result = np.zeros((len(rows), len(self)))
        number = self.numbers(members, rows.own)
        here = np.flatnonzero((number >= 0) & (rows.partners >= 0).any(1))
        result[here, number[here]] = self.deviation[number[here]]
        return result

    def variance(self, members: Members, own: Integers) -> Floats:
        """[R] variance that effects add to members beside partners."""
        number = self.numbers(members, own)
        return np.where(number >= 0, np.append(self.deviation, 0.0)[number] ** 2, 0.0)


def most_observed_first(jobs: Integers, off: Bools, rank: Integers) -> list[int]:
    """The jobs [N] of the rows that are `off`, with most rows first, then with the lowest rank."""
    names, place, count = np.unique(jobs, return_inverse=True, return_counts=True)
    lowest = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(lowest, place, rank)
    doubted = np.unique(place[off])
    order = np.lexsort((lowest[doubted], -count[doubted]))
    return list(names[doubted[order]].tolist())
