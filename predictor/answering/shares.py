"""Jobs that MPS limits to a share of the multiprocessors, beside others.

A step takes as long as alone under the share, and the part of what the neighbours take that their own shares leave them: limited to few
multiprocessors each, jobs still contend for bandwidth, cache and host. No share of a neighbour makes a job slower.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.examples.featurizer import Featurizer
from profiling.workload import Workload

# What neighbours with next to no multiprocessors still take of the excess that they would cause without a limit. Chosen on 900 of
# MISO's mixes on an A100 (`python -m benchmarks.share_mixes`; from .4 to .6 it makes no difference).
_NOT_OF_MULTIPROCESSORS = 0.5


def unlimited(workload: Workload, device: str, featurizer: Featurizer) -> tuple[Workload, float]:
    """The job without its share, and its step time alone over that with the share (at most 1).

    A step that was measured under the share is brought to the whole device by the cost model.
    """
    if workload.sm_share_ratio == 1.0:
        return workload, 1.0
    limited = workload.without_solo()
    whole = replace(limited, sm_share_ratio=1.0)
    steps = [featurizer.job(job, device).cost.step_time_s for job in (whole, limited)]
    ratio = min(steps[0] / steps[1], 1.0)
    measured = workload.solo.step_time_s
    solo = replace(workload.solo, step_time_s=None if measured is None else measured * ratio)
    return replace(whole, solo=solo), ratio


def beside_shares(share: Floats, present: NDArray[np.bool_]) -> Floats:
    """[S, M] part of a job's excess that is left where its neighbours are limited to a `share` [S, M], by the mean of theirs; 1 without
    neighbours."""
    limited = np.where(present, share, 0.0)
    others = np.maximum(present.sum(1, keepdims=True) - 1, 1)
    mean = np.where(
        present.sum(1, keepdims=True) > 1, (limited.sum(1, keepdims=True) - limited) / others, 1.0
    )
    return np.asarray(_NOT_OF_MULTIPROCESSORS + (1.0 - _NOT_OF_MULTIPROCESSORS) * mean)
