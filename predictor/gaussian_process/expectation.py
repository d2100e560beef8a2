"""Which sets to observe next: those that reduce the variance of later queries most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


@dataclass
class Expectation:
    """Joint expectation of R rows, before and after observing some of them.

    Attributes:
        mean: [R]; covariance: [R, R].
    """

    mean: Floats
    covariance: Floats

    def observe(self, rows: Integers, observed: Floats, noise: Floats) -> Expectation:
        """Condition on `rows` having the values `observed`."""
        block = self.covariance[:, rows]
        held = self.covariance[np.ix_(rows, rows)] + np.diag(noise)
        gain = np.linalg.solve(held, block.T).T
        return Expectation(self.mean + gain @ (observed - self.mean[rows]), self.covariance - gain @ block.T)

    def best(self, candidates: Sequence[Integers], noise: Floats, asked: Floats) -> int:
        """The candidate, by number, with the largest weighted variance reduction.

        This is Bayesian A-optimal design (Chaloner and Verdinelli 1995), one step ahead.

        Args:
            candidates: groups of rows that are observed together.
            noise: [R] variance of an observation of each row.
            asked: [R] weights of the rows to be queried later.
        """
        gained = np.zeros(len(candidates))
        sizes = np.array([len(rows) for rows in candidates])
        for size in np.unique(sizes):  # those of one size together
            these = np.flatnonzero(sizes == size)
            rows = np.stack([candidates[k] for k in these.tolist()])  # [K, size]
            block = self.covariance[rows]  # [K, size, R]
            inner = np.take_along_axis(block, rows[:, None, :], 2) + noise[rows][:, :, None] * np.eye(size)
            weighted = (block * asked) @ block.transpose(0, 2, 1)
            gained[these] = np.trace(np.linalg.solve(inner, weighted), axis1=1, axis2=2)
        return int(np.argmax(gained))
