"""Co-located jobs limited by MPS to a share of the multiprocessors.

A step takes its solo time under the share, plus a part of the neighbours' contention that depends on their
shares: even with few multiprocessors each, jobs still contend for bandwidth, cache and host. A neighbour's
share never makes a job slower.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.answering.transferred import transferred
from predictor.examples.featurizer import Featurizer
from profiling.devices import get_device
from profiling.workload import Workload

# Part of the unlimited excess that neighbours with almost no multiprocessors still cause. Chosen on 900 of
# MISO's mixes on an A100 (`python -m benchmarks.share_mixes`; from .4 to .6 it makes no difference).
_NOT_OF_MULTIPROCESSORS = 0.5
# The smallest share in these mixes. Below it that part falls in proportion to the share, down to none: a job at a
# fiftieth of its speed asks for a fiftieth of the bandwidth.
_LEAST_MEASURED = 0.14


def effective_share(workload: Workload, device: str) -> float:
    """The share that a device enforces: at least one multiprocessor, so the whole of a CPU core."""
    return max(workload.sm_share_ratio, 1.0 / get_device(device).sm_count)


def unlimited(workload: Workload, device: str, featurizer: Featurizer) -> tuple[Workload, float]:
    """The job without its share, and the ratio of its solo step times without and with the share (at most 1).

    What was measured under the share is carried over to the whole device as it is to a slice.
    """
    if workload.sm_share_ratio == 1.0:
        return workload, 1.0
    whole = transferred(workload, device, device, 1.0, featurizer)
    if workload.solo.step_time_s is None:  # what is not measured under the share is predicted without it, too
        whole = replace(whole, solo=replace(whole.solo, step_time_s=None))
    steps_s = [
        w.solo.step_time_s or featurizer.job(w.without_solo(), device).cost.step_time_s
        for w in (whole, workload)
    ]
    return whole, min(steps_s[0] / steps_s[1], 1.0)


def remaining_contention(share: Floats) -> Floats:
    """Excess that a job causes under its `share` of the multiprocessors, as a part of what it causes without one."""
    rest = _NOT_OF_MULTIPROCESSORS * np.minimum(share / _LEAST_MEASURED, 1.0)
    return np.asarray(rest + (1.0 - _NOT_OF_MULTIPROCESSORS) * share)


def beside_shares(share: Floats, present: NDArray[np.bool_]) -> Floats:
    """[S, M] part of a job's excess that remains if its neighbours are limited to a `share` [S, M].

    It is the mean over neighbours of their `remaining_contention`; 1 without neighbours.
    """
    caused = np.where(present, remaining_contention(share), 0.0)
    others = present.sum(1, keepdims=True) - 1
    mean = (caused.sum(1, keepdims=True) - caused) / np.maximum(others, 1)
    return np.asarray(np.where(others > 0, mean, 1.0))
