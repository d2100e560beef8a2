"""Steps under an MPS share: the whole device's step, times how much longer the cost model says it takes, corrected by trees."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from predictor.evaluation.protocols.graphs import graph_of
from predictor.evaluation.protocols.published.steps import TARGETS
from predictor.evaluation.protocols.registry import Contender, register
from profiling.devices import get_device
from profiling.errors import CotenantError
from profiling.workload import Workload

if TYPE_CHECKING:
    from models.cost import JobCost

_SHARES = (0.05, 0.1, 0.2, 0.4)
"""At which the trees see the whole curve of a job, whatever share is asked."""


class ShareCostPredictor:
    """Relative slowdown by the shipped cost model, which has learned from no row below the whole device.

    Args:
        corrected: whether trees learn, from the training rows, what the cost model is off by.
    """

    def __init__(self, corrected: bool) -> None:
        self.corrected = corrected

    def fit(self, train: Bundle, seed: int) -> ShareCostPredictor:
        from sklearn.ensemble import ExtraTreesRegressor

        if self.corrected:
            features, log_ratio = share_features(train)
            measured = np.log(train.y / _whole(train))
            usable = train.points & np.isfinite(features).all(axis=1) & np.isfinite(measured)
            self.trees_ = ExtraTreesRegressor(
                300, min_samples_leaf=2, max_features=0.6, random_state=seed, n_jobs=1
            )
            self.trees_.fit(features[usable], (measured - log_ratio)[usable])
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN where a network's graph is unknown."""
        features, log_ratio = share_features(test)
        known = np.isfinite(features).all(axis=1)
        if self.corrected and known.any():
            log_ratio[known] += self.trees_.predict(features[known])
        return np.where(known, _whole(test) * np.exp(log_ratio), np.nan)


def share_features(bundle: Bundle) -> tuple[Floats, Floats]:
    """[n, F] features and [n] log of step time under the share over that of the whole device, by the cost model; NaN where unknown."""
    rows, whole = bundle.rows, _whole(bundle)
    features = np.full((len(rows), 9 + len(_SHARES)), np.nan)
    log_ratio = np.full(len(rows), np.nan)
    for number, row in enumerate(rows.to_dict("records")):
        device, share = str(row["device"]), float(row["sm_share_ratio"])
        # One job, whatever its share: so that its costs are worked out once.
        job = replace(Workload.parse(str(row["workload"])).without_solo(), sm_share_ratio=1.0)
        all_of_it, part = _cost(job, device, 1.0), _cost(job, device, share)
        if all_of_it is None or part is None:
            continue
        step_s, busy_s = all_of_it.step_time_s, all_of_it.busy_s
        log_ratio[number] = np.log(part.step_time_s / step_s)
        curve = [_cost(job, device, at) for at in _SHARES]
        features[number] = [
            np.log(share),
            log_ratio[number],
            np.log(max(part.busy_s / busy_s, 1.0)),
            np.log(busy_s / step_s),
            np.log(all_of_it.compute_s / busy_s),
            np.log(all_of_it.launch_s / step_s),
            np.log(step_s),
            np.log(float(row["batch_size"])),
            np.log(whole[number] / step_s),
            *(np.log(cost.step_time_s / step_s) for cost in curve if cost is not None),
        ]
    return features, log_ratio


@lru_cache(maxsize=20_000)
def _cost(job: Workload, device: str, share: float) -> JobCost | None:
    from models.cost import default_cost_model

    graph = graph_of(str(job))
    if graph is None:
        return None
    workload = replace(job, sm_share_ratio=share)
    try:
        return default_cost_model().cost(graph, get_device(device), workload)
    except CotenantError:
        return None


def _whole(bundle: Bundle) -> Floats:
    return bundle.rows["whole_step_time_s"].to_numpy(dtype=np.float64)


for _name, _corrected, _seconds in (("share-cost-model", False, 5), ("share-cost-trees", True, 15)):
    register(
        Contender(
            _name,
            lambda corrected=_corrected: ShareCostPredictor(corrected),  # type: ignore[misc]
            version="2",
            targets=TARGETS,
            protocols=frozenset({"rapp-by-model"}),
            partial=True,
            seconds_per_fold=_seconds,
        )
    )
