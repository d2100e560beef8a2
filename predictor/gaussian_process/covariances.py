"""Prior covariances of a growing body of evidence; those of earlier rows are reused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve_triangular

from models.features import Floats
from predictor.gaussian_process.inducing import Choice, Inducing, Start
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.rows import Rows, covariance, variance
from predictor.padding import equally_wide

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Rows per block of covariances with the inducing rows.
_TOGETHER = 4096


@dataclass(frozen=True)
class Evidence:
    """Observations, as input to the process.

    Attributes:
        members: V members.
        rows: N rows of these members.
        target: [N] observed value minus prior mean, on the scale of `predictor.gaussian_process.link`.
        noise: [N] variance of the observation.
        rank: [N] numbers that order the rows independently of arrival; the lowest are the inducing rows.
        count: [N] observations averaged in each row, up to where more no longer narrow it.
        steep: [N] slope of the scale at the observed slowdown.
        training: how many of the rows, the first ones, are pairs that the predictor was trained on, and not
            observations.
        own_effect: [N] part of `noise` that is the variance of an effect of this row alone.

    `count`, `steep` and `own_effect` may be given as one number for all rows.
    """

    members: Members
    rows: Rows
    target: Floats
    noise: Floats
    rank: Integers
    count: Floats = 1.0  # type: ignore[assignment]
    steep: Floats = 1.0  # type: ignore[assignment]
    training: int = 0
    own_effect: Floats = 0.0  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, values in self._columns().items():
            object.__setattr__(self, name, np.broadcast_to(values, len(self.rows)))

    def take(self, index: Integers) -> Evidence:
        """Some of the rows, none of which are training pairs."""
        columns: dict[str, Any] = {name: values[index] for name, values in self._columns().items()}
        return replace(self, rows=self.rows.take(index), **columns)

    def joined(self, further: Evidence) -> Evidence:
        """Followed by further rows of the same members."""
        more = further._columns()
        columns: dict[str, Any] = {
            name: np.concatenate([values, more[name]]) for name, values in self._columns().items()
        }
        return replace(self, rows=self.rows.joined(further.rows), **columns)

    def _columns(self) -> dict[str, Any]:
        """What there is one of for each row."""
        names = ("target", "noise", "rank", "count", "steep", "own_effect")
        return {name: getattr(self, name) for name in names}


class Covariances:
    """Covariances of N rows with each other or, above `most_rows`, with at most that many inducing rows.

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
        prior: [N] prior variance of every row.
        gram: [N, N] covariance of all rows; only if `exact`.
        factor: Cholesky factor of the covariance of the used rows; only if not `exact`.
        through: [N, used] transposed solution x of `factor` x = covariance of the inducing rows with all
            rows; only if not `exact`.
        unexplained: [N] prior variance of each row given the inducing rows; only if not `exact`.
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
        self.prior = np.empty(len(rows))
        if earlier is not None:
            before = min(len(rows), len(earlier.prior))
            self.prior[:before] = earlier.prior[:before]
        self.prior[fresh] = variance(parameters, members, rows.take(fresh))
        if self.exact:
            self.used, self.rows = np.arange(len(rows)), rows
            self.gram = self._all(members, fresh, earlier if earlier is not None and earlier.exact else None)
            return
        if earlier is None or earlier.exact or not self._extend(members, fresh, evidence.rank, earlier):
            self._choose(members, evidence.rank)
        self.used = self.inducing.numbers
        self.rows = rows.take(self.used)
        self.factor: Floats = self.inducing.factor

    def _choose(self, members: Members, rank: Integers) -> None:
        """Choose the inducing rows anew."""
        through = self._room()
        self._chosen(Choice(self.parameters, members, self.known, self.prior, rank, through).made(), through)

    def _room(self) -> Floats:
        """[N, most_rows] new memory for `through`, with some behind it for more rows."""
        count = len(self.known)
        self._buffer: Floats | None = np.empty((count + count // 4, self.most_rows))
        return self._buffer[:count]

    def _chosen(self, inducing: Inducing, through: Floats) -> None:
        self.inducing, self.through = inducing, through[:, : len(inducing)]
        self.unexplained = np.maximum(self.prior - (self.through**2).sum(1), 0.0)
        self.replaced = np.zeros(0, np.int64), self.through[:0]

    def _extend(self, members: Members, fresh: Integers, rank: Integers, earlier: Covariances) -> bool:
        """Keep the inducing rows of `earlier`, up to the first that would not be chosen now."""
        rows, inducing, known = self.known, earlier.inducing, len(earlier.known)
        # There are fewer rows if a job alone displaced a set from the sample.
        if len(rows) < known:
            return False
        through = np.empty((len(fresh), len(inducing)))
        for start in range(0, len(fresh), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            cross = covariance(self.parameters, members, earlier.rows, members, rows.take(fresh[part]))
            through[part] = solve_triangular(inducing.factor, cross, lower=True, check_finite=False).T
        changes = inducing.insertion(self.prior[fresh], through, rank[fresh]), inducing.place_of(fresh)
        found = [change for change in changes if change is not None]
        buffer = None if found else earlier.handed_over()
        if buffer is None:
            self._choose_from(min(found, default=inducing.end), members, fresh, rank, earlier, through)
            return True
        if len(buffer) < len(rows):
            larger = np.empty((len(rows) + len(rows) // 4, self.most_rows))
            larger[:known] = buffer[:known]
            buffer = larger
        before = fresh[fresh < known]
        if len(before):
            buffer = buffer.copy()  # `earlier` goes on answering from these rows
        self._buffer, self.inducing, self.reused = buffer, inducing, True
        self.through = buffer[: len(rows), : len(inducing)]
        self.replaced = before, self.through[before]
        self.through[fresh] = through
        self.unexplained = np.empty(len(rows))
        self.unexplained[:known] = earlier.unexplained
        self.unexplained[fresh] = np.maximum(self.prior[fresh] - (through**2).sum(1), 0.0)
        return True

    def _choose_from(
        self,
        start: Start,
        members: Members,
        fresh: Integers,
        rank: Integers,
        earlier: Covariances,
        through: Floats,
    ) -> None:
        """Choose the inducing rows of `earlier` before `start`, and the others anew.

        Args:
            through: [fresh, used by `earlier`] of the rows that are new.
        """
        kept, room = start.kept, self._room()
        room[: len(earlier.known), :kept] = earlier.through[:, :kept]
        room[fresh, :kept] = through[:, :kept]
        choice = Choice(self.parameters, members, self.known, self.prior, rank, room, earlier.inducing, start)
        self._chosen(choice.made(), room)

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
    a, b = equally_wide(rows.partners[:count], earlier.partners[:count])
    same = (rows.own[:count] == earlier.own[:count]) & (a == b).all(1)
    return np.concatenate([np.flatnonzero(~same), np.arange(count, len(rows))])
