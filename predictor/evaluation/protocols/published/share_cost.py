"""Steps under an MPS share: the step on the whole device, scaled by a cost model, corrected by regression."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pandas as pd
from cachetools import LRUCache

from datasets.bundle import Bundle, Floats
from predictor.evaluation.protocols.published.cost_model import job_input
from predictor.evaluation.protocols.published.steps import TARGETS
from predictor.evaluation.protocols.registry import Contender, register
from profiling.workload import Workload

if TYPE_CHECKING:
    from sklearn.ensemble import VotingRegressor

    from models.cost import CostModel
    from predictor.training.cost.examples import CostExample

_BUCKETS = 5
"""Groups of networks that a fit leaves out together: a fit without a whole group serves all folds of its networks."""
_EPOCHS = 60
_SHARES_OF_A_JOB = 6
"""Shares of each job that a fit learns from, beside the whole device; its curve is smooth."""
_CURVE = (0.05, 0.1, 0.2, 0.4)
"""At which the trees see the whole curve of a job, whatever share is asked."""
_KEPT_FITS = 40

_fits: LRUCache[tuple[int, frozenset[int], int], CostModel] = LRUCache(_KEPT_FITS)


class ShareCostPredictor:
    """Relative slowdown by a cost model fitted to the training rows, at shares and on the whole device.

    No fit has seen the group of networks (`bucket_of`) for which it is queried.

    Args:
        corrected: whether to correct by the mean of trees and a support vector regression, which learn the
            cost model's error on training networks left out of its fit.
    """

    def __init__(self, corrected: bool) -> None:
        self.corrected = corrected

    def fit(self, train: Bundle, seed: int) -> ShareCostPredictor:
        self.rows_ = train.rows[train.points].assign(measured_s=train.y[train.points])
        self.seed_ = seed
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN if a network's graph is unknown."""
        result = np.full(len(test.rows), np.nan)
        buckets = np.array([bucket_of(name) for name in test.rows["architecture"]])
        for bucket in np.unique(buckets).tolist():
            chosen = buckets == bucket
            result[chosen] = self._predict(test.rows[chosen], bucket)
        return result

    def _predict(self, rows: pd.DataFrame, bucket: int) -> Floats:
        model = self._model(frozenset({bucket}))
        features, log_ratio = share_features(model, rows)
        known = np.isfinite(features).all(axis=1)
        if self.corrected and known.any():
            log_ratio[known] += self._correction(bucket).predict(features[known])
        whole = rows["whole_step_time_s"].to_numpy(dtype=np.float64)
        return np.where(known, whole * np.exp(log_ratio), np.nan)

    def _correction(self, bucket: int) -> VotingRegressor:
        """Regression of the errors on networks of other groups, each left out of its fit together with
        `bucket`."""
        features, errors = [], []
        of = self.rows_["architecture"].map(bucket_of)
        for other in sorted(set(of) - {bucket}):
            part = self.rows_[of == other]
            columns, log_ratio = share_features(self._model(frozenset({bucket, other})), part)
            off = np.log(part["measured_s"] / part["whole_step_time_s"]).to_numpy() - log_ratio
            usable = np.isfinite(columns).all(axis=1) & np.isfinite(off)
            features.append(columns[usable])
            errors.append(off[usable])
        return _regression(self.seed_).fit(np.concatenate(features), np.concatenate(errors))

    def _model(self, left_out: frozenset[int]) -> CostModel:
        from predictor.training.cost.fit import CostConfig, fit_cost

        rows = self.rows_[~self.rows_["architecture"].map(bucket_of).isin(left_out)]
        columns = rows[["workload", "device", "measured_s"]]
        key = self.seed_, left_out, int(pd.util.hash_pandas_object(columns, index=False).sum())
        if key not in _fits:
            config = CostConfig(networks=1, epochs=_EPOCHS, seed=self.seed_)
            _fits[key] = fit_cost(_examples(rows, self.seed_), config)
        return _fits[key]


def _regression(seed: int) -> VotingRegressor:
    """The mean of a forest, which is discontinuous, and a smooth regression.

    Both were chosen on training networks only.
    """
    from sklearn.ensemble import ExtraTreesRegressor, VotingRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    trees = ExtraTreesRegressor(300, min_samples_leaf=4, random_state=seed, n_jobs=1)
    smooth = make_pipeline(StandardScaler(), SVR(C=0.3, epsilon=0.02, gamma=0.02))
    return VotingRegressor([("trees", trees), ("smooth", smooth)])


def bucket_of(architecture: str) -> int:
    """Group of a network, by a hash of its name."""
    return crc32(architecture.encode()) % _BUCKETS


def _examples(rows: pd.DataFrame, seed: int) -> list[CostExample]:
    from predictor.training.cost.examples import CostExample, campaign_of

    examples: list[CostExample] = []
    shuffled = rows.sample(frac=1.0, random_state=seed)
    for _, part in shuffled.groupby(["device", "architecture", "batch_size"], sort=True):
        chosen = part.head(_SHARES_OF_A_JOB)
        first = chosen.iloc[0]
        whole = _at(str(first["workload"]), 1.0), float(first["whole_step_time_s"])
        at_shares = zip(chosen["workload"].astype(str), chosen["measured_s"], strict=True)
        for workload, step_s in (whole, *at_shares):
            job = job_input(workload, str(first["device"]))
            if job is not None and step_s > 0:
                number = len(examples)
                examples.append(CostExample(number, job, float(np.log(step_s)), campaign_of(first)))
    return examples


def share_features(model: CostModel, rows: pd.DataFrame) -> tuple[Floats, Floats]:
    """[n, F] features, and [n] log ratio of the step times under the share and on the whole device.

    Both are computed with `model`; NaN if unknown.
    """
    features = np.full((len(rows), 9 + len(_CURVE)), np.nan)
    log_ratio = np.full(len(rows), np.nan)
    costs = {}
    for number, row in enumerate(rows.to_dict("records")):
        device, share, spec = str(row["device"]), float(row["sm_share_ratio"]), str(row["workload"])
        jobs = [job_input(_at(spec, at), device) for at in (1.0, share, *_CURVE)]
        for job in jobs:
            if job is not None and id(job) not in costs:
                costs[id(job)] = job, model.cost_of(job)
        if any(job is None for job in jobs):
            continue
        all_of_it, part, *curve = (costs[id(job)][1] for job in jobs)
        step_s, busy_s = all_of_it.step_time_s, all_of_it.busy_s
        log_ratio[number] = np.log(part.step_time_s / step_s)
        features[number] = [
            np.log(share),
            log_ratio[number],
            np.log(max(part.busy_s / busy_s, 1.0)),
            np.log(busy_s / step_s),
            np.log(all_of_it.compute_s / busy_s),
            np.log(all_of_it.launch_s / step_s),
            np.log(step_s),
            np.log(float(row["batch_size"])),
            np.log(float(row["whole_step_time_s"]) / step_s),
            *(np.log(cost.step_time_s / step_s) for cost in curve),
        ]
    return features, log_ratio


def _at(spec: str, share: float) -> str:
    return str(replace(Workload.parse(spec).without_solo(), sm_share_ratio=share))


for _name, _corrected, _version, _seconds in (
    ("share-cost-model", False, "3", 10),
    ("share-cost-corrected", True, "1", 20),
):
    register(
        Contender(
            _name,
            partial(ShareCostPredictor, _corrected),
            version=_version,
            targets=TARGETS,
            protocols=frozenset({"rapp-by-model"}),
            partial=True,
            seconds_per_fold=_seconds,
        )
    )
