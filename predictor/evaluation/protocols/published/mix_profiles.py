"""Mixes under MPS shares, predicted from each member's solo profile.

The profile holds its runs on slices, its utilisation, and the cost model's figures for its graph.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats, partners
from predictor.evaluation.protocols.published.cost_model import job_input
from predictor.evaluation.protocols.registry import Contender, register
from profiling.devices import get_device
from profiling.workload import Workload

# From the whole card down; a job that does not fit on a slice is assumed to be as fast as on the next larger
# one.
_SLICES = ("7g", "4g", "3g", "2g", "1g")
_BUSY = len(_SLICES) - 1
_CARD, _LEAST_SHARE = "a100", 0.14
_MOST_ROWS = 6_000


class MixProfiles:
    """Mean of ridge regression, extremely randomised trees and boosted trees, on the log of the target.

    Each sees a member's own profile, and number, sum, maximum and mean of its partners'. Trees capture
    interactions but do not extrapolate beyond the sizes in training; the ridge regression does.
    """

    def fit(self, train: Bundle, seed: int = 0) -> MixProfiles:
        """Learn from up to `_MOST_ROWS` of the measured points of `train`.

        Raises:
            InputError: no measured points.
        """
        from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, VotingRegressor
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        points = np.flatnonzero(train.learned_points())
        if len(points) > _MOST_ROWS:
            points = np.random.default_rng(seed).choice(points, _MOST_ROWS, replace=False)
        target = np.log(train.y[points])
        self.range_ = float(target.min()), float(target.max())
        trees = ExtraTreesRegressor(120, min_samples_leaf=5, max_features=0.4, random_state=seed, n_jobs=1)
        boosted = HistGradientBoostingRegressor(
            max_iter=200,
            learning_rate=0.05,
            max_leaf_nodes=15,
            min_samples_leaf=60,
            l2_regularization=5.0,
            random_state=seed,
        )
        ridge = make_pipeline(StandardScaler(), Ridge(30.0))
        self.model_ = VotingRegressor([("ridge", ridge), ("trees", trees), ("boosted", boosted)])
        self.model_.fit(mix_features(train)[points], target)
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`, clamped to the range of the training targets."""
        return np.exp(np.clip(self.model_.predict(mix_features(test)), *self.range_))


def mix_features(bundle: Bundle) -> Floats:
    """[n, F] of `bundle.rows`: a member's own profile, and number, sum, maximum and mean of its partners'."""
    rows = bundle.rows.reset_index(drop=True)
    own = profiles(bundle.known["solo"]).reindex(rows["workload"]).to_numpy(dtype=np.float64)
    own = np.nan_to_num(own)
    others = partners(rows)
    count = np.array([len(index) for index in others], dtype=np.float64)
    total = np.array([own[index].sum(axis=0) for index in others])
    most = np.array([own[index].max(axis=0) if len(index) else np.zeros(own.shape[1]) for index in others])
    asked = own[:, _BUSY] + total[:, _BUSY]
    log_asked = np.log(np.maximum(asked, 1e-3))
    mean = total / np.maximum(count, 1)[:, None]
    return np.column_stack([own, count, total, most, mean, asked, log_asked, np.maximum(log_asked, 0)])


def profiles(solo: pd.DataFrame) -> pd.DataFrame:
    """Profile of each job alone; a missing value is the mean over other jobs.

    Columns are the log ratios of step times on slices to that on the whole card, utilisation, memory
    bandwidth, log step time, and the cost on the whole card and on its smallest share.
    """
    steps = solo[solo["step_time_s"].notna()].pivot_table(
        index="workload", columns="device", values="step_time_s", aggfunc="mean"
    )
    steps.columns = [str(name).rpartition("=")[2] for name in steps.columns]
    steps = steps.reindex(columns=list(_SLICES)).ffill(axis=1).apply(np.log)
    table = steps.drop(columns="7g").sub(steps["7g"], axis=0)
    for column in ("utilization_ratio", "memory_bandwidth_ratio"):
        table[column] = solo[solo[column].notna()].groupby("workload")[column].mean()
    table["log_step_s"] = steps["7g"]
    costs = pd.DataFrame(
        [_cost(job, float(step)) for job, step in steps["7g"].items()], index=table.index, dtype=np.float64
    ).add_prefix("cost_")
    table = pd.concat([table, costs], axis=1)
    return table.fillna(table.mean())


@lru_cache(maxsize=1_000)
def _cost(spec: str, log_step_s: float) -> tuple[float, ...]:
    """Figures of the cost model for a job.

    These are the busy share, the arithmetic and traffic shares of busy time, busy and step time under the
    smallest share (log, relative to the whole card), and busy time (log, relative to the step and in
    seconds).
    """
    from models.cost import default_cost_model

    least_share = replace(Workload.parse(spec).without_solo(), sm_share_ratio=_LEAST_SHARE)
    jobs = job_input(spec, _CARD), job_input(str(least_share), _CARD)
    if jobs[0] is None or jobs[1] is None:
        return (np.nan,) * 7
    whole, least = (default_cost_model().cost_of(job) for job in jobs if job is not None)
    bandwidth = get_device(_CARD).memory_bandwidth_bytes_per_s
    return (
        whole.utilization_ratio,
        whole.compute_s / whole.busy_s,
        whole.traffic_bytes / bandwidth / whole.busy_s,
        float(np.log(least.busy_s / whole.busy_s)),
        float(np.log(least.step_time_s / whole.step_time_s)),
        float(np.log(whole.busy_s) - log_step_s),
        float(np.log(whole.busy_s)),
    )


register(Contender("mix-profiles", MixProfiles, targets=("step_time_ratio",), seconds_per_fold=20))
