"""Additive demand: utilisations and memories add up; an overloaded device is shared in proportion.

The rule of thumb of schedulers that pack by utilisation, such as Horus (Yeung et al., TPDS 2022).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.bundle import Bundle
from profiling.errors import InputError


class AdditivePredictor:
    """Not fitted; every number comes from solo runs. NaN if a member's solo run is unknown.

    * throughput ratio: min(1, 1 / sum of solo utilisations), the same for all members;
    * memory of a set: sum of solo memories;
    * utilisation of a set: min(1, sum of solo utilisations).

    Args:
        estimate: function of (SPEC, device, solo step time) to a utilisation if none was measured; NaN
            without it.
    """

    def __init__(self, estimate: Callable[[str, str, float], float] | None = None) -> None:
        self.estimate = estimate

    def fit(self, train: Bundle, seed: int = 0) -> AdditivePredictor:  # noqa: ARG002
        """Nothing to learn; checks only that the target is one of its three.

        Raises:
            InputError: the target is not a co-location target.
        """
        if train.what.table != "colocation":
            raise InputError("additive demand only predicts sets", expected="a co-location target")
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`."""
        column = "memory_bytes" if test.target == "set_memory_bytes" else "utilization_ratio"
        key = ["device", "workload", "campaign"]
        alone = test.solo[test.solo["gpus"] == 1].drop_duplicates(key)[[*key, column, "step_time_s"]]
        if self.estimate is not None and column == "utilization_ratio":
            guess = [
                self.estimate(str(w), str(d), float(s))
                for w, d, s in zip(alone["workload"], alone["device"], alone["step_time_s"], strict=True)
            ]
            alone = alone.assign(
                utilization_ratio=alone[column].astype(float).fillna(pd.Series(guess, index=alone.index))
            )
        members = test.colocation[["set_id", *key]].merge(alone, on=key, how="left")
        sums = members.groupby("set_id")[column].agg(lambda demand: demand.sum(skipna=False))
        demand = np.asarray(test.rows["set_id"].map(sums), dtype=np.float64)
        if test.target == "set_memory_bytes":
            return demand
        if test.target == "set_utilization_ratio":
            return np.clip(demand, 0.0, 1.0)
        ratio: NDArray[np.float64] = np.minimum(1.0, 1.0 / np.maximum(demand, 1e-9))
        return ratio
