"""Times of single forward operators by the cost model.

Each row of the `operators` table is a graph of one node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.baselines.operator_work import operator_work
from models.cost.form import HOSTS
from models.cost.job import JobInput
from models.cost.operator_features import context_of, operator_features
from models.cost.work import IS_CONTRACTION, Floats, work_of
from profiling.devices import get_device
from profiling.errors import CotenantError
from profiling.graph_columns import COLUMNS
from profiling.operators import dtype_index, kind_index
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from models.cost.model import CostModel
    from profiling.devices import DeviceSpec

# Operators with parameters.
_WEIGHTED = ("linear", "convolution", "layer_norm")
_NORMALISING = ("layer_norm", "softmax")
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64", "tf32": "float32"}


def operator_times(cost_model: CostModel, rows: pd.DataFrame) -> tuple[Floats, list[str]]:
    """Seconds of one forward call for every row, including the host's part.

    Args:
        cost_model: the cost model.
        rows: rows of the `operators` table.

    Returns:
        [n] seconds, NaN if there is no answer; and the reasons for those.
    """
    seconds = np.full(len(rows), np.nan)
    reasons: list[str] = []
    for (name, precision), part in rows.reset_index(drop=True).groupby(["device", "precision"], sort=False):
        try:
            device = get_device(str(name))
            workload = Workload("operator", mode="inference", precision=str(precision))
            job = operators_job(part, device, workload)
        except CotenantError as error:
            reasons += [error.message] * len(part)
            continue
        known = np.isfinite(job.work.traffic_bytes).all(axis=0)
        reasons += ["a dimension of the operator is missing"] * int((~known).sum())
        seconds[part.index] = np.where(known, cost_model.call_times(job), np.nan)
    return seconds, reasons


def operator_columns(operators: pd.DataFrame) -> dict[str, Floats]:
    """Rows of the `operators` table as the columns of a graph (`profiling.graph_columns`), forward pass only."""
    flops, moved = operator_work(operators)
    kinds = operators["kind"].to_numpy(dtype=object)

    def of(name: str) -> Floats:
        return operators[name].to_numpy(dtype=np.float64, na_value=np.nan)

    b, m, n, k, outputs = (of(name) for name in ("b", "m", "n", "k", "output_channels"))
    is_convolution, is_linear, is_matmul = (kinds == kind for kind in ("convolution", "linear", "matmul"))
    side, kernel, stride = of("input_size"), of("kernel_size"), of("stride")
    positions = b * (np.floor((side + 2 * of("padding") - kernel) / stride) + 1) ** 2
    written = np.select([is_convolution, is_linear | is_matmul], [positions * outputs, b * m * n], b * n)
    width = operators["precision"].map({"fp64": 8.0, "fp16": 2.0, "bf16": 2.0}).fillna(4.0).to_numpy()
    types = operators["precision"].map(lambda name: dtype_index(_DTYPES.get(name, "float32"))).to_numpy()
    columns = {name: np.zeros(len(operators)) for name in COLUMNS}
    is_normalising = np.isin(kinds, _NORMALISING)
    columns |= {
        "kind": np.array([kind_index(kind) for kind in kinds], dtype=np.float64),
        "bytes_written": written * width,
        "bytes_read": moved - written * width,
        "output_elements": written,
        "gemm_batch": np.select([is_matmul, is_linear | is_convolution], [b, 1.0], 0.0),
        "gemm_m": np.select([is_matmul, is_linear, is_convolution], [m, b * m, positions], 0.0),
        "gemm_n": np.select([is_matmul | is_linear, is_convolution], [n, outputs], 0.0),
        "gemm_k": np.select(
            [is_matmul | is_linear, is_convolution], [k, of("input_channels") * kernel**2], 0.0
        ),
        "reduction_size": np.where(is_normalising, n, 0.0),
        "reduction_count": np.where(is_normalising, b, 0.0),
        "layer_index": np.full(len(operators), -1.0),
        "repeat": np.ones(len(operators)),
        "kernel_count": np.ones(len(operators)),
        "forward_kernel_count": np.ones(len(operators)),
        "dtype": types.astype(np.float64),
        "input_dtype": types.astype(np.float64),
        "weight_dtype": np.where(np.isin(kinds, _WEIGHTED), types, -1.0),
    }
    # A graph counts only the arithmetic of contractions.
    columns["forward_flops"] = np.where(IS_CONTRACTION[columns["kind"].astype(int)], flops, 0.0)
    window = {
        "kernel_depth": 1.0,
        "kernel_height": kernel,
        "kernel_width": kernel,
        "stride_height": stride,
        "stride_width": stride,
        "dilation": 1.0,
        "groups": 1.0,
        "input_channels": of("input_channels"),
        "output_channels": outputs,
        "input_depth": 1.0,
        "input_height": side,
        "input_width": side,
    }
    chosen: dict[str, Floats] = {
        name: np.where(is_convolution, np.asarray(value, dtype=np.float64), 0.0)
        for name, value in window.items()
    }
    return columns | chosen


def operators_job(operators: pd.DataFrame, device: DeviceSpec, workload: Workload) -> JobInput:
    """All rows as the operators of one job, forward pass only.

    Raises:
        InputError: the device lacks the precision.
    """
    columns = operator_columns(operators)
    work = work_of(columns, device, workload.precision)
    features = operator_features(columns, context_of(workload, device.is_cpu))
    mask = np.stack([np.ones(len(operators)), np.zeros(len(operators))])
    return JobInput(
        features,
        work,
        mask,
        columns["kind"].astype(np.int64),
        optimizer_bytes=0.0,
        optimizer_kernels=0.0,
        host_bytes=0.0,
        samples=1,
        device=device,
        is_compiled=False,
        precision=workload.precision,
        host=HOSTS.index("on_device"),
    )
