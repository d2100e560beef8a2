"""The linear system of a conditioned process, solved with all rows of evidence or through inducing rows.

Both kinds of solution give weights of the used rows and of own effects, which make means, and vectors whose products make
explained covariances. They depend on the noise of the rows, so they are solved again when rows are discounted.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from models.features import Floats
from predictor.gaussian_process.covariances import Covariances
from predictor.gaussian_process.leave_one_out import LeftOut
from predictor.gaussian_process.precision import Before, LeveragedPrecision, Precision, solved

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

_Sum = TypeVar("_Sum", bound=Precision)
_JITTER = 1e-8


class ExactSolution:
    """With all rows; own effects are part of their covariances.

    Args:
        covariances: of the N rows.
        own: [N, effects] loadings of the rows on own effects, each of unit variance.
        target: [N] see `Evidence`.

    Attributes:
        weight: [N] of the used rows, here all; own_weight: [effects] means of own effects.
        explained_sign: [W] signs, 1 or -1, for the vectors of `halves`.
    """

    weight: Floats

    def __init__(self, covariances: Covariances, own: Floats, target: Floats) -> None:
        self._own, self._target = own, target
        self._gram = covariances.gram + own @ own.T if own.shape[1] else covariances.gram
        self.explained_sign = np.ones(len(target))

    def solve(self, noise: Floats, _earlier: object = None) -> None:
        """Weigh the rows, given the variance of each observation [N]."""
        gram = self._gram.copy()
        gram[np.diag_indices_from(gram)] += noise + _JITTER
        self._factor = cholesky(gram, lower=True, check_finite=False, overwrite_a=True)
        self.weight = solved(self._factor, self._target)

    solve_again = solve

    def left_out(self, noise: Floats) -> LeftOut:
        """Each row, predicted from the other ones."""
        inverse = solve_triangular(self._factor, np.eye(len(self._target)), lower=True, check_finite=False)
        return LeftOut.of((inverse**2).sum(0), self.weight, noise)

    @property
    def own_weight(self) -> Floats:
        return np.asarray(self._own.T @ self.weight)

    def fitted(self, rows: Integers) -> Floats:
        """[R] means of rows of the evidence, by number."""
        return np.asarray(self._gram[rows] @ self.weight)

    def with_own(self, cross: Floats, own: Floats) -> Floats:
        """[R, used] covariance of queried rows with the used ones, as the methods below take it.

        Args:
            cross: without own effects; overwritten.
            own: [R, effects] loadings of the queried rows on own effects.
        """
        if own.shape[1]:
            cross += own @ self._own.T
        return cross

    def mean(self, cross: Floats, _own: Floats) -> Floats:
        """[R] means of queried rows."""
        return cross @ self.weight

    def halves(self, cross: Floats, _own: Floats) -> Floats:
        """[W, R] vectors of queried rows.

        The evidence reduces the covariance of two rows by the signed sum of the products of their vectors.
        """
        return np.asarray(solve_triangular(self._factor, cross.T, lower=True, check_finite=False))

    def added(self, cross: Floats, _own: Floats) -> Floats:
        """[R, used] what each used row contributes to the means of queried rows."""
        return cross * self.weight

    def response(self, rows: Integers, change: Floats) -> Floats:
        """[W] vector whose product with those of `halves` says by how much means move with some targets.

        Args:
            rows: numbers of rows of the evidence; change: [len(rows)] of their targets.
        """
        moved = self._moved(rows, change)
        return np.asarray(solve_triangular(self._factor, moved, lower=True, check_finite=False))

    def changed(self, rows: Integers, change: Floats) -> ExactSolution:
        """A solution whose means are by how much those of this one move; arguments as in `response`."""
        other = copy(self)
        other.weight = solved(self._factor, self._moved(rows, change))
        return other

    def _moved(self, rows: Integers, change: Floats) -> Floats:
        moved = np.zeros(len(self._target))
        moved[rows] = change
        return moved


class InducingSolution:
    """Through inducing rows, which are the used ones, with own effects apart.

    Methods, attributes and arguments are those of `ExactSolution`.
    """

    weight: Floats
    own_weight: Floats

    def __init__(self, covariances: Covariances, own: Floats, target: Floats) -> None:
        self._covariances, self._own, self._target = covariances, own, target
        self._through = np.concatenate([covariances.through, own], 1) if own.shape[1] else covariances.through
        self._factor = covariances.factor
        self.explained_sign = np.repeat([1.0, -1.0], self._through.shape[1])

    def solve(self, noise: Floats, earlier: InducingSolution | None = None) -> None:
        """Weigh the rows, so that they can be left out.

        Args:
            noise: [N] variance of each observation.
            earlier: for the first of these rows, with the same inducing rows and effects, which saves time.
        """
        before = self._since(earlier, lambda one: one._precision)
        self._precision = LeveragedPrecision(self._through, 1.0 / noise, self._target, before)
        self.solve_again(noise, earlier)

    def solve_again(self, noise: Floats, earlier: InducingSolution | None = None) -> None:
        """The same after `solve`, with noise that differs for few rows; those left out stay as they were."""
        before = self._since(earlier, lambda one: one._final)
        starts: list[Before[Precision]] = [Before(self._precision)]
        if before is not None:
            starts.insert(0, before)
        self._final = Precision(self._through, 1.0 / noise, self._target, starts)
        self._take(solved(self._final.factor, self._final.information))

    def _since(
        self, earlier: InducingSolution | None, precision: Callable[[InducingSolution], _Sum]
    ) -> Before[_Sum] | None:
        if earlier is None:
            return None
        replaced, former = self._covariances.replaced
        if not len(replaced):
            return Before(precision(earlier))
        return None if self._own.shape[1] else Before(precision(earlier), replaced, former)

    def _take(self, inner: Floats) -> None:
        """Weights from the means of the inducing rows and own effects, as combinations of unit variance."""
        count = len(self._factor)
        self._inner = inner
        self.weight = solve_triangular(self._factor, inner[:count], lower=True, trans=1, check_finite=False)
        self.own_weight = inner[count:]

    def left_out(self, noise: Floats) -> LeftOut:
        # What the inducing rows do not explain of a row, no other row does.
        unexplained = self._covariances.unexplained
        residual = self._target - self._through @ self._inner
        share = np.minimum(self._precision.leverage / noise, 1 - 1e-6)
        variance = noise * share / (1 - share) + unexplained
        return LeftOut(residual / (1 - share), variance, noise)

    def fitted(self, rows: Integers) -> Floats:
        return np.asarray(self._through[rows] @ self._inner)

    def with_own(self, cross: Floats, _own: Floats) -> Floats:
        return cross

    def mean(self, cross: Floats, own: Floats) -> Floats:
        return cross @ self.weight + own @ self.own_weight

    def halves(self, cross: Floats, own: Floats) -> Floats:
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        half = np.concatenate([half, own.T])
        left = solve_triangular(self._final.factor, half, lower=True, check_finite=False)
        return np.concatenate([half, left])

    def added(self, cross: Floats, own: Floats) -> Floats:
        added = cross * self.weight
        if own.shape[1]:
            # What a job has for itself is put down to its used rows, if there are any.
            shares = self._own[self._covariances.used] > 0
            added += (own * self.own_weight) @ (shares / np.maximum(shares.sum(0), 1)).T
        return added

    def response(self, rows: Integers, change: Floats) -> Floats:
        moved = self._moved(rows, change)
        inner = solve_triangular(self._final.factor, moved, lower=True, check_finite=False)
        return np.concatenate([np.zeros(len(inner)), inner])

    def changed(self, rows: Integers, change: Floats) -> InducingSolution:
        other = copy(self)
        other._take(solved(self._final.factor, self._moved(rows, change)))
        return other

    def _moved(self, rows: Integers, change: Floats) -> Floats:
        return np.asarray(self._through[rows].T @ (change * self._final.weight[rows]))
