"""Ridge regressions on the members of a mix: on their solo runs on slices, or on their names."""

from __future__ import annotations

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats, partners
from models.baselines.features import one_hot


class RidgeOfMixes:
    """Linear in features of a member and sums over its partners, for the logarithm of the target.

    Args:
        jobs: True: one-hot of the member's job and counts of its partners' jobs ("additive"). False: the
            ratio of its step times on a small and a large slice, its utilisation, the partners' utilisations,
            the number of members and their products.
    """

    def __init__(self, jobs: bool) -> None:
        self.jobs = jobs

    def fit(self, train: Bundle, seed: int = 0) -> RidgeOfMixes:  # noqa: ARG002
        """Learn from the measured points of `train`; `seed` is not used.

        Raises:
            InputError: no measured points.
        """
        from sklearn.linear_model import Ridge

        points = train.learned_points()
        self.names_ = sorted(set(train.rows["workload"]))
        x = self._features(train)
        self.middle_, self.spread_ = x.mean(axis=0), x.std(axis=0) + 1e-9
        target = np.log(train.y[points])
        self.range_ = (target.min(), target.max())
        self.model_ = Ridge(alpha=1.0).fit(self._scaled(x)[points], target)
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`, clamped to the range of the training targets."""
        answers = self.model_.predict(self._scaled(self._features(test)))
        return np.exp(np.clip(answers, *self.range_))

    def _scaled(self, x: Floats) -> Floats:
        scaled: Floats = (x - self.middle_) / self.spread_
        return scaled

    def _features(self, bundle: Bundle) -> Floats:
        rows = bundle.rows.reset_index(drop=True)
        others = partners(rows)
        if self.jobs:
            own = one_hot(rows["workload"], self.names_)
            return np.hstack([own, np.stack([own[index].sum(axis=0) for index in others])])
        own = _alone(rows, bundle.known["solo"])
        count = np.array([len(index) for index in others], dtype=np.float64)
        busy = np.array([own[index, -1].sum() for index in others])
        both = np.column_stack([own, count, busy])
        products = [both[:, i] * both[:, j] for i in range(both.shape[1]) for j in range(i, both.shape[1])]
        return np.column_stack([both, *products])


def _alone(rows: pd.DataFrame, solo: pd.DataFrame) -> Floats:
    """[n, 3] log ratio of step times on 3g and 7g, and on 2g and 7g, and the solo utilisation.

    Where one was not measured, the mean over the jobs of `solo`; 0 if it was measured of none.
    """
    steps = solo[solo["step_time_s"].notna()].pivot_table(
        index="workload", columns="device", values="step_time_s", aggfunc="mean"
    )
    steps.columns = [str(name).rpartition("=")[2] for name in steps.columns]
    whole = steps["7g"] if "7g" in steps else pd.Series(np.nan, index=steps.index)
    ratios: dict[str, pd.Series] = {}
    for name in ("3g", "2g"):
        smaller = steps[name] if name in steps else pd.Series(np.nan, index=steps.index)
        ratios[name] = pd.Series(np.log((smaller / whole).to_numpy(dtype=np.float64)), index=steps.index)
    # A job that does not fit into the smaller slice is assumed to slow down as much as on the next larger
    # one.
    ratios["2g"] = ratios["2g"].fillna(ratios["3g"])
    busy = solo[solo["utilization_ratio"].notna()].groupby("workload")["utilization_ratio"].mean()
    table = pd.DataFrame({**ratios, "busy": busy})
    known = table.reindex(rows["workload"].to_list())
    return known.fillna(table.mean()).fillna(0.0).to_numpy(dtype=np.float64)
