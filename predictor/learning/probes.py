"""Which sets to observe next: those whose outcome takes most variance off what will be asked."""

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
    """What is expected of R rows together, before and after some of them are observed.

    Attributes:
        mean: [R]; covariance: [R, R].
    """

    mean: Floats
    covariance: Floats

    def gain(self, rows: Integers, noise: Floats, asked: Floats) -> float:
        """Weighted variance that observing `rows` takes off: A-optimal design (Chaloner and Verdinelli 1995).

        Args:
            rows: those observed together.
            noise: [len(rows)] variance of their observation.
            asked: [R] weights of the rows that will be asked for.
        """
        block = self.covariance[rows]
        inner = self.covariance[np.ix_(rows, rows)] + np.diag(noise)
        return float(np.sum(np.linalg.solve(inner, block) * block * asked))

    def observe(self, rows: Integers, observed: Floats, noise: Floats) -> Expectation:
        """After `rows` were seen to be `observed`."""
        block = self.covariance[:, rows]
        held = self.covariance[np.ix_(rows, rows)] + np.diag(noise)
        gain = np.linalg.solve(held, block.T).T
        return Expectation(self.mean + gain @ (observed - self.mean[rows]), self.covariance - gain @ block.T)

    def best(self, candidates: Sequence[Integers], noise: Floats, asked: Floats) -> tuple[int, float]:
        """(number of the candidate that takes most variance off, how much). `noise` is [R], as `asked`."""
        weighted = (self.covariance * asked) @ self.covariance
        best = (-1, -1.0)
        for number, rows in enumerate(candidates):
            block = np.ix_(rows, rows)
            inner = self.covariance[block] + np.diag(noise[rows])
            gained = float(np.trace(np.linalg.solve(inner, weighted[block])))
            if gained > best[1]:
                best = (number, gained)
        return best
