"""Prior covariances of a growing body of evidence; those of earlier rows are reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from models.features import Floats
from predictor.learning.kernel import KernelParameters, Members
from predictor.learning.rows import Rows, covariance

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

_JITTER = 1e-8
# Rows per block of covariances with the inducing rows.
_TOGETHER = 4096


@dataclass(frozen=True)
class Evidence:
    """Observations, as input to the process.

    Attributes:
        members: V members.
        rows: N rows of these members.
        target: [N] observed value minus prior mean, on the scale of `predictor.learning.link`.
        noise: [N] variance of the observation.
        bound: [N] whether the observation is an upper bound.
        rank: [N] numbers that order the rows independently of arrival; the lowest are the inducing rows.
        count: [N] observations averaged in each row, up to where more no longer narrow it; or one number for
            all rows.
        steep: [N] slope of the scale at the observed slowdown, or one number for all rows.
    """

    members: Members
    rows: Rows
    target: Floats
    noise: Floats
    bound: np.ndarray
    rank: Integers
    count: Floats | float = 1.0
    steep: Floats | float = 1.0


class Covariances:
    """Covariances of N rows with each other or, above `most_rows`, with that many inducing rows.

    Args:
        parameters: kernel parameters.
        evidence: the rows.
        most_rows: largest number of rows used exactly.
        earlier: covariances of the evidence that this evidence extends, which can still be queried. Its buffer is
            taken over, not copied, as long as rows are only added.

    Attributes:
        exact: whether all rows are used.
        used: numbers of the rows that are conditioned on.
        rows: these rows.
        gram: [N, N] if `exact`, else [used, used].
        factor: Cholesky factor of `gram`; only if not `exact`.
        through: [N, used] transposed solution x of `factor` x = covariance of the inducing rows with all
            rows; only if not `exact`.
        reused: whether `through` was taken over from `earlier`.
        replaced: numbers of the rows taken over that changed, and their former rows of `through`; only if not
            `exact`.
    """

    def __init__(
        self,
        parameters: KernelParameters,
        evidence: Evidence,
        most_rows: int,
        earlier: Covariances | None = None,
    ) -> None:
        self.parameters, self.most_rows, self.known = parameters, most_rows, evidence.rows
        members, rows = evidence.members, evidence.rows
        self.exact, self.reused = len(rows) <= most_rows, False
        if earlier is not None and (earlier.parameters != parameters or earlier.most_rows != most_rows):
            earlier = None
        fresh = _not_in(rows, earlier.known) if earlier is not None else np.arange(len(rows))
        if self.exact:
            self.used, self.rows = np.arange(len(rows)), rows
            self.gram = self._all(members, fresh, earlier if earlier is not None and earlier.exact else None)
            return
        self.used = np.sort(np.argpartition(evidence.rank, most_rows)[:most_rows])
        self.rows = rows.take(self.used)
        buffer = None
        if (
            earlier is not None
            and not earlier.exact
            and len(earlier.known) <= len(rows)  # fewer if a job alone displaced a set from the sample
            and np.array_equal(earlier.used, self.used)
            and not len(_not_in(self.rows, earlier.rows))
        ):
            buffer = earlier.handed_over()
        if earlier is not None and buffer is not None:
            self.gram, self.reused = earlier.gram, True
            self.factor: Floats = earlier.factor
        else:
            fresh = np.arange(len(rows))
            self.gram = covariance(parameters, members, self.rows, members, self.rows)
            steadied = self.gram.copy()
            steadied[np.diag_indices_from(steadied)] += _JITTER + 1e-6 * np.diag(steadied).mean()
            self.factor = cholesky(steadied, lower=True, check_finite=False, overwrite_a=True)
        if buffer is None or len(buffer) < len(rows):
            larger = np.empty((len(rows) + len(rows) // 4, most_rows))
            if buffer is not None:
                larger[: len(buffer)] = buffer
            buffer = larger
        before = fresh[fresh < len(earlier.known)] if earlier is not None and self.reused else fresh[:0]
        if len(before):
            buffer = buffer.copy()  # `earlier` goes on answering from these rows
        self.replaced = before, buffer[before]
        for start in range(0, len(fresh), _TOGETHER):
            part = fresh[start : start + _TOGETHER]
            cross = covariance(parameters, members, self.rows, members, rows.take(part))
            buffer[part] = solve_triangular(self.factor, cross, lower=True, check_finite=False).T
        self._buffer: Floats | None = buffer
        self.through = buffer[: len(rows)]

    def handed_over(self) -> Floats | None:
        """Give away the buffer behind `through`, once: the receiver may add rows."""
        buffer: Floats | None = self.__dict__.pop("_buffer", None)
        return buffer

    def _all(self, members: Members, fresh: Integers, earlier: Covariances | None) -> Floats:
        rows = self.known
        if earlier is None:
            return covariance(self.parameters, members, rows, members, rows)
        gram = np.empty((len(rows), len(rows)))
        before = min(len(earlier.known), len(rows))
        gram[:before, :before] = earlier.gram[:before, :before]
        if len(fresh):
            cross = covariance(self.parameters, members, rows.take(fresh), members, rows)
            gram[fresh], gram[:, fresh] = cross, cross.T
        return gram


def _not_in(rows: Rows, earlier: Rows) -> Integers:
    """Numbers of the rows that differ from the row of the same number in `earlier`, or have none there."""
    count = min(len(rows), len(earlier))
    width = max(rows.partners.shape[1], earlier.partners.shape[1])
    a, b = (
        np.pad(r.partners[:count], ((0, 0), (0, width - r.partners.shape[1])), constant_values=-1)
        for r in (rows, earlier)
    )
    same = (rows.own[:count] == earlier.own[:count]) & (a == b).all(1)
    return np.concatenate([np.flatnonzero(~same), np.arange(count, len(rows))])
