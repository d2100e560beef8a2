"""What a predictor is given: rows to learn from with their targets, or rows to predict without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from profiling.errors import UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

# What can be predicted; the first is the main one.
TARGETS = ("throughput_ratio", "set_memory_bytes", "set_utilization_ratio", "solo_step_time_s")
# Everything measured under co-location: never an input.
_MEASURED_TOGETHER = (
    "throughput_ratio",
    "step_time_s",
    "set_memory_bytes",
    "set_utilization_ratio",
    "set_memory_bandwidth_ratio",
)


@dataclass(frozen=True)
class Bundle:
    """Measurements on one side of a fold.

    Attributes:
        target: one of `TARGETS`.
        colocation: whole co-location sets, partners without a target included. In a test bundle everything that was
            measured under co-location is NaN.
        solo: solo runs of the members, from the same campaigns: known beforehand, so on both sides. Empty where a protocol
            withholds them. For the target `solo_step_time_s` these are the rows to predict, and in a test bundle
            their measurements are NaN.
    """

    target: str
    colocation: pd.DataFrame
    solo: pd.DataFrame

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise UnknownNameError("no such target", expected="one of " + ", ".join(TARGETS), got=self.target)

    @property
    def rows(self) -> pd.DataFrame:
        """The rows to predict, one prediction each: members, sets (their first member stands for them) or solo runs."""
        if self.target == "solo_step_time_s":
            return self.solo
        if self.target == "throughput_ratio":
            return self.colocation
        return self.colocation[~self.colocation["set_id"].duplicated()]

    @property
    def y(self) -> NDArray[np.float64]:
        """[n] the target of each of `rows`; NaN where it was not measured (a hard-coded value, a test bundle).

        A censored ratio is given as the bound it is: see `censored`.
        """
        rows = self.rows
        column = "step_time_s" if self.target == "solo_step_time_s" else self.target
        values = rows[column].to_numpy(dtype=np.float64, na_value=np.nan)
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
        """[n] whether `y` is a measured point: what a plain regression learns from and what errors are computed on."""
        return ~np.isnan(self.y) & ~self.censored

    def without_targets(self) -> Bundle:
        """The same rows as a test bundle: nothing measured under co-location is left in them."""
        colocation = self.colocation.assign(**dict.fromkeys(_MEASURED_TOGETHER, np.nan), censored=False)
        solo = self.solo
        if self.target == "solo_step_time_s":
            hidden = [
                "step_time_s",
                "samples_per_s",
                "memory_bytes",
                "utilization_ratio",
                "memory_bandwidth_ratio",
            ]
            solo = solo.assign(**dict.fromkeys(hidden, np.nan))
        return Bundle(self.target, colocation, solo)

    def without_solo(self) -> Bundle:
        """The same sets, with nothing known of how their members run alone."""
        colocation = self.colocation.assign(solo_step_time_s=np.nan)
        return Bundle(self.target, colocation, self.solo.iloc[:0])


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
