"""Times of single operators from the roofline, and from similar operators on other devices."""

from __future__ import annotations

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.operator_work import LAUNCH_S, operator_roofline_s, operator_work
from profiling.errors import InputError

# The launch floor is this quantile of an operator's call times on a device.
_FLOOR_QUANTILE = 0.01


class OperatorRoofline:
    """Roofline plus one launch; nothing is learned."""

    def fit(self, train: Bundle, seed: int = 0) -> OperatorRoofline:  # noqa: ARG002
        """Nothing to learn."""
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN for a device outside the catalogue."""
        return operator_roofline_s(test.rows) + LAUNCH_S


class OperatorEfficiency:
    """Roofline over the median efficiency of similar operators, plus their launch floor.

    Similar operators are of the same kind, and of the same size and arithmetic intensity within a factor of
    2; if no row agrees in all of these, fewer have to agree.
    """

    def fit(self, train: Bundle, seed: int = 0) -> OperatorEfficiency:  # noqa: ARG002
        """Learn from the measured points of `train` on devices of the catalogue; `seed` is not used.

        Raises:
            InputError: no such points.
        """
        rows = train.rows
        keys = self._keys(rows)
        floors = pd.Series(train.y).groupby([rows["operator"].to_numpy(), rows["device"].to_numpy()])
        floor = floors.transform(lambda part: part.quantile(_FLOOR_QUANTILE)).to_numpy()
        # Time of a call beyond its launch; a call at the floor itself carries little more information.
        slope = np.maximum(train.y - floor, 0.1 * train.y) / keys["roofline"].to_numpy()
        usable = train.points & np.isfinite(slope)
        if not usable.any():
            raise InputError(
                "nothing to learn from", expected="operators on devices of the catalogue", got="none"
            )
        self.floor_ = pd.Series(floor[usable]).groupby(rows["operator"].to_numpy()[usable]).median()
        known = keys[usable].assign(slope=slope[usable])
        self.tables_ = [known.groupby(columns, observed=True)["slope"].median() for columns in self._levels()]
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN for a device outside the catalogue or an operator never seen."""
        rows = test.rows
        keys = self._keys(rows)
        slope = pd.Series(np.nan, index=keys.index)
        for columns, table in zip(self._levels(), self.tables_, strict=True):
            index = (
                pd.MultiIndex.from_frame(keys[columns]) if len(columns) > 1 else pd.Index(keys[columns[0]])
            )
            slope = slope.fillna(pd.Series(table.reindex(index).to_numpy(), index=keys.index))
        floor = rows["operator"].map(self.floor_).to_numpy(dtype=np.float64)
        return keys["roofline"].to_numpy() * slope.to_numpy() + floor

    @staticmethod
    def _levels() -> list[list[str]]:
        return [["operator", "size", "intensity"], ["operator", "size"], ["operator"]]

    @staticmethod
    def _keys(rows: pd.DataFrame) -> pd.DataFrame:
        flops, moved = operator_work(rows)
        roofline = operator_roofline_s(rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            size = np.floor(np.log2(roofline))
            intensity = np.floor(np.log2(flops / moved))
        return pd.DataFrame(
            {
                "operator": rows["operator"].to_numpy(dtype=object),
                "roofline": roofline,
                "size": size,
                "intensity": intensity,
            }
        )
