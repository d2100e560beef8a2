"""Input of a predictor: rows to learn from with their targets, or rows to predict without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datasets.targets import Target, get_target
from profiling.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bundle:
    """Measurements on one side of a fold.

    Attributes:
        target: a name of `datasets.targets`.
        frame: rows of the target's table, with their targets; in a test bundle, everything measured together
            with the targets is empty. Co-location sets have all their members, including partners without a
            target.
        solo: solo runs of the members of sets, from the same campaigns. They are known beforehand, so they
            are on both sides. Empty if a protocol withholds them, and for targets of other tables.
        known: further tables known beforehand, by name.
        related: in a training bundle, measurements that a contender may learn from besides `frame`, in the
            same table (other kinds of step of the same units). No unit of the test side is among them.
    """

    target: str
    frame: pd.DataFrame
    solo: pd.DataFrame
    known: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    related: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        get_target(self.target)

    @property
    def what(self) -> Target:
        return get_target(self.target)

    @property
    def colocation(self) -> pd.DataFrame:
        """The members of the sets; no rows if the target is in another table."""
        return self.frame if self.what.table == "colocation" else self.frame.iloc[:0]

    @property
    def rows(self) -> pd.DataFrame:
        """The rows to predict, one prediction each; a set is represented by its first member."""
        return self.frame[~self.frame["set_id"].duplicated()] if self.what.of_set else self.frame

    @property
    def y(self) -> Floats:
        """[n] the target of each of `rows`.

        NaN if it was not measured (a hard-coded value, a bound, a test bundle).

        A censored ratio is given as the bound that it is: see `censored`.
        """
        rows = self.rows
        values = rows[self.what.column].to_numpy(dtype=np.float64, na_value=np.nan)
        if self.what.exponent:
            values = np.exp(values)
        if self.target == "throughput_ratio":
            values = np.where(rows["is_target"].to_numpy(dtype=bool), values, np.nan)
        return values

    @property
    def censored(self) -> NDArray[np.bool_]:
        """[n] whether `y` is a lower bound rather than a point."""
        if self.target != "throughput_ratio":
            return np.zeros(len(self.rows), dtype=bool)
        return self.rows["censored"].to_numpy(dtype=bool)

    @property
    def points(self) -> NDArray[np.bool_]:
        """[n] whether `y` is a measured point, used for plain regression and for errors."""
        return ~np.isnan(self.y) & ~self.censored

    def learned_points(self) -> NDArray[np.bool_]:
        """`points`. Raises `InputError` if there are none."""
        points = self.points
        if not points.any():
            raise InputError("nothing to learn from", expected="rows with a measured target", got="none")
        return points

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """[n] each: lower and upper bounds of values known only by them; NaN otherwise."""
        nothing = np.full(len(self.rows), np.nan)
        if self.target == "memory_bytes":
            lower, upper = (
                self.rows[f"{end}_bound_bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
                for end in ("lower", "upper")
            )
            return lower, upper
        return np.where(self.censored, self.y, np.nan), nothing

    def without_targets(self) -> Bundle:
        """The same rows as a test bundle, without anything measured with the target."""
        import pandas as pd

        hidden = {
            name: pd.Series(np.nan, index=self.frame.index, dtype="float64")
            for name in self.what.hidden
            if name in self.frame
        }
        frame = self.frame.assign(**hidden)
        return replace(self, frame=frame.assign(censored=False) if "censored" in frame else frame)

    def without_solo(self) -> Bundle:
        """The same sets without solo measurements."""
        frame = self.frame
        if "solo_step_time_s" in frame:
            frame = frame.assign(solo_step_time_s=np.nan)
        return replace(self, frame=frame, solo=self.solo.iloc[:0])


def partners(colocation: pd.DataFrame) -> list[NDArray[np.int64]]:
    """For each row, the positions of the other members of its set.

    Returns:
        one array of positions per row, in the table's order.
    """
    result: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * len(colocation)
    for indices in colocation.groupby("set_id", sort=False).indices.values():
        members = np.asarray(indices, dtype=np.int64)
        for position in members:
            result[position] = members[members != position]
    return result
