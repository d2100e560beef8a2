"""Computation graphs of rows' jobs, and their rooflines by kind of operator."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from profiling.devices import get_device
from profiling.errors import CotenantError
from profiling.operators import KINDS
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from profiling.devices import DeviceSpec
    from profiling.graph import ComputationGraph

# Convolutions are split up because they differ most: by what limits them, and because grouped ones use
# another algorithm.
GROUPS = (
    *(f"convolution_{part}" for part in ("compute", "memory", "grouped")),
    *(kind for kind in KINDS if kind != "convolution"),
    "optimizer",
    "kernels",
)
# Times are in nanoseconds, so that an operator of any size takes more than 1.
_NS = 1e9
_CONVOLUTION = KINDS.index("convolution")


def graph_of(spec: str) -> ComputationGraph | None:
    """The graph of a training step of a row's `workload`, including frozen layers; None if there is none.

    There is none if the network is unknown, the image size is not stored, or an option is invalid.
    """
    from profiling.capture import graph_for

    try:
        return graph_for(Workload.parse(spec).captured())
    except CotenantError:
        return None


def kind_times(bundle: Bundle) -> pd.DataFrame:
    """[n rows] roofline times on the device in nanoseconds, and numbers of kernels.

    Times are those of the whole step (`roofline`) and by `GROUPS`. NaN if the job has no graph or its device
    is not in the catalogue.
    """
    import pandas as pd

    rows = bundle.rows
    times = [_kind_times(spec, device) for spec, device in zip(rows["workload"], rows["device"], strict=True)]
    return pd.DataFrame(
        np.array(times).reshape(-1, 1 + len(GROUPS)), index=rows.index, columns=["roofline", *GROUPS]
    )


@lru_cache(maxsize=100_000)
def _kind_times(spec: str, device: str) -> Floats:
    """[1 + GROUPS]; cached, because all folds and predictors query the same rows."""
    workload = Workload.parse(spec)
    nothing = np.full(1 + len(GROUPS), np.nan)
    try:
        card = get_device(device)
        card.check_precision(workload.precision)
    except CotenantError:
        return nothing
    graph = graph_of(spec)
    return nothing if graph is None else _times(graph, workload, card)


def _times(graph: ComputationGraph, workload: Workload, card: DeviceSpec) -> Floats:
    columns = graph.columns
    training = workload.mode == "training"
    runs = columns["repeat"] if training else columns["repeat"] * (columns["training_only"] == 0)
    # [2, N]: forward pass and backward pass.
    flops = np.stack([columns["forward_flops"], columns["backward_flops"]])
    moved = np.stack([columns["bytes_read"] + columns["bytes_written"], columns["backward_bytes"]])
    kernels = columns["kernel_count"] if training else columns["forward_kernel_count"]
    if not training:
        flops[1] = moved[1] = 0.0
    peak = np.where(
        columns["tensor_core"] > 0,
        card.peak_flops(workload.precision),
        card.peak_flops(workload.precision, tensor_core=False),
    )
    compute, memory = flops / peak, moved / card.memory_bandwidth_bytes_per_s
    seconds = (np.maximum(compute, memory) * runs).sum(axis=0)
    bound = np.where(compute.sum(axis=0) > memory.sum(axis=0), "compute", "memory")
    part = np.where(columns["groups"] > 1, "grouped", bound)
    names = np.array(KINDS, dtype=object)[columns["kind"].astype(int)]
    names = np.where(columns["kind"] == _CONVOLUTION, "convolution_" + part.astype(object), names)
    sums = dict.fromkeys(GROUPS, 0.0)
    for name, value in zip(names, seconds, strict=True):
        sums[str(name)] += float(value) * _NS
    if training and graph.optimizer_bytes:
        sums["optimizer"] = graph.optimizer_bytes / card.memory_bandwidth_bytes_per_s * _NS
    total = sum(sums.values())
    sums["kernels"] = float((kernels * runs).sum()) + (graph.optimizer_kernels if training else 0.0)
    return np.array([total, *sums.values()])
