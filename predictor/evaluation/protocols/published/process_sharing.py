"""Equal processes in a slice: processor sharing, and trees on top.

Both start from the share of time for which one process keeps the slice busy.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from datasets.bundle import Bundle, Floats
from predictor.evaluation.protocols.published.cost_model import job_input
from predictor.evaluation.protocols.registry import Contender, register
from profiling.devices import get_device, split_device
from profiling.errors import InputError

_PROTOCOL = "parvagpu-by-model"


class ProcessSharing:
    """Processor sharing: n processes that each keep the slice busy for a share u run n u times as long.

    u is the cost model's busy time over the measured solo step time. If n u is at most 1, they are not
    slowed.

    Args:
        corrected: whether trees predict the ratio instead, from the cost model's figures for a step.
    """

    def __init__(self, corrected: bool) -> None:
        self.corrected = corrected

    def fit(self, train: Bundle, seed: int = 0) -> ProcessSharing:
        """Learn from the measured points of `train`, if anything is learned.

        Raises:
            InputError: no measured points.
        """
        from sklearn.ensemble import ExtraTreesRegressor

        if self.corrected:
            features, _ = _features(train)
            points = train.points & np.isfinite(features).all(axis=1)
            if not points.any():
                raise InputError("nothing to learn from", expected="rows with a measured target", got="none")
            self.trees_ = ExtraTreesRegressor(
                300, min_samples_leaf=3, max_features=0.5, random_state=seed, n_jobs=1
            ).fit(features[points], np.log(train.y[points]))
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] throughput ratio; NaN if a network's graph or its solo step time is unknown."""
        features, log_ratio = _features(test)
        known = np.isfinite(features).all(axis=1)
        if self.corrected and known.any():
            log_ratio[known] = np.minimum(self.trees_.predict(features[known]), 0.0)
        return np.where(known, np.exp(log_ratio), np.nan)


def _features(bundle: Bundle) -> tuple[Floats, Floats]:
    """[n, F] features, and [n] log ratio by processor sharing."""
    rows = bundle.rows
    alone = bundle.solo.groupby(["workload", "device"])["step_time_s"].mean()
    keys = list(zip(rows["workload"], rows["device"], strict=True))
    step_s = np.array([alone.get(key, np.nan) for key in keys], dtype=np.float64)
    count = rows["processes"].to_numpy(dtype=np.float64)
    batch = rows["batch_size"].to_numpy(dtype=np.float64)
    multiprocessors = np.array([get_device(device).sm_count for _, device in keys], dtype=np.float64)
    costs = np.array([_cost(*key) for key in keys]).reshape(-1, 8)
    busy, expected, launch, host, compute, traffic, launches, whole = costs.T
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.minimum(busy / step_s, 1.0)
        log_ratio = -np.log(np.maximum(count * used, 1.0))
        columns = [
            count,
            multiprocessors,
            np.log(batch),
            np.log(step_s),
            np.log(busy),
            np.log(expected / step_s),
            np.log(busy / step_s),
            np.log(count * busy / step_s),
            log_ratio,
            launch / step_s,
            host / step_s,
            count * host / step_s,
            compute / busy,
            traffic / busy,
            traffic / step_s,
            count * traffic / step_s,
            count * compute / step_s,
            np.log(busy / whole),
            np.log(step_s / launches),
        ]
    return np.column_stack(columns), log_ratio


@lru_cache(maxsize=4_000)
def _cost(spec: str, device: str) -> tuple[float, ...]:
    """Seconds of a step by the cost model.

    These are busy, total, launching, copying, arithmetic and traffic; then the number of launches, and the
    busy time on the whole card.
    """
    from models.cost import default_cost_model

    job, on_card = job_input(spec, device), job_input(spec, split_device(device)[0])
    if job is None or on_card is None:
        return (np.nan,) * 8
    cost = default_cost_model().cost_of(job)
    return (
        cost.busy_s,
        cost.step_time_s,
        cost.launch_s,
        cost.host_s,
        cost.compute_s,
        cost.traffic_bytes / job.device.memory_bandwidth_bytes_per_s,
        cost.launches,
        default_cost_model().cost_of(on_card).busy_s,
    )


for _name, _corrected in (("process-sharing", False), ("process-sharing-trees", True)):
    register(
        Contender(
            _name,
            partial(ProcessSharing, _corrected),
            targets=("throughput_ratio",),
            protocols=frozenset({_PROTOCOL}),
            partial=True,
            seconds_per_fold=3,
        )
    )
