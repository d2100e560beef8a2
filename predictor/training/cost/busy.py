"""Measured busy time of a device: it separates the device's part of a step from the host's."""

from __future__ import annotations

import numpy as np
import pandas as pd

from profiling.collections import collection_of
from profiling.devices import get_device, split_device
from profiling.workload import Workload

_JOB = ["workload", "mode", "source", "campaign"]


def busy_rows(solo: pd.DataFrame, kernels: pd.DataFrame | None = None) -> pd.DataFrame:
    """Rows like those of `solo`, whose `step_time_s` is busy time.

    They come from utilisation (share of time in which a kernel runs) and step time of a job alone on a GPU; a
    step on the slice that is the whole card (`a100:mig=7g`) counts as one on the card. They also come from
    lists of all kernels of a step, for networks with a known input size (a language model's sequence length
    is not known).

    Args:
        solo: measured steps.
        kernels: rows of the table `kernels`.
    """
    parts = [_by_utilization(solo)]
    if kernels is not None and len(kernels):
        known = kernels.workload.map(lambda spec: collection_of(Workload.parse(spec).model) == "torchvision")
        sums = kernels[known].groupby(["device", *_JOB]).duration_s.sum().rename("step_time_s")
        parts.append(sums.reset_index().assign(gpus=1))
    return pd.concat(parts, ignore_index=True)


def _by_utilization(solo: pd.DataFrame) -> pd.DataFrame:
    whole = solo.device.map(lambda name: split_device(str(name))[0])
    is_largest = (solo.device == whole) | solo.device.str.endswith(":mig=7g")
    # A CPU is its own host: its utilisation does not separate the two.
    is_gpu = whole.map({name: not get_device(name).is_cpu for name in whole.unique()})
    rows = solo.assign(device=whole)[is_largest & is_gpu & (solo.gpus == 1)]
    used = rows[rows.utilization_ratio.notna()].groupby(["device", *_JOB]).utilization_ratio.mean()
    steps = rows[rows.step_time_s.notna()].groupby(["device", *_JOB]).step_time_s.mean()
    joined = pd.concat([used, steps], axis=1, join="inner").reset_index()
    busy_s = joined.step_time_s * np.minimum(joined.utilization_ratio, 1.0)
    return joined.assign(step_time_s=busy_s, gpus=1).drop(columns="utilization_ratio")
