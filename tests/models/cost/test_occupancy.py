"""Kernel grids as the libraries choose them."""

from __future__ import annotations

import numpy as np
import pytest

from models.cost import default_cost_model
from models.cost.occupancy import occupancy_of, warps_of
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.graph_columns import COLUMNS
from profiling.operators import kind_index
from profiling.workload import Workload


def columns(kind: str, **values: float) -> dict[str, np.ndarray]:
    chosen = {"kind": float(kind_index(kind)), **values}
    return {name: np.array([chosen.get(name, 0.0)]) for name in (*COLUMNS, "kind", "output_elements")}


@pytest.mark.parametrize(
    ("operator", "warps"),
    [
        (columns("elementwise", output_elements=512 * 100), 400),
        (columns("layer_norm", output_elements=64 * 768, reduction_count=64, reduction_size=768), 256),
        (columns("softmax", output_elements=64 * 512, reduction_count=64, reduction_size=512), 64),
        (columns("softmax", output_elements=64 * 2048, reduction_count=64, reduction_size=2048), 512),
        # 16 x 16 tiles of 128 x 128 keep 100 multiprocessors at work, 8 warps each.
        (columns("matmul", gemm_batch=1, gemm_m=2048, gemm_n=2048, gemm_k=64), 16 * 16 * 8),
        # 4 x 4 of the smallest tile do not: split along the depth into as many parts as make two blocks for each.
        (columns("linear", gemm_batch=1, gemm_m=128, gemm_n=128, gemm_k=4096), 16 * 12 * 4),
    ],
)
def test_warps_of_a_kernel(operator: dict[str, np.ndarray], warps: float) -> None:
    assert warps_of(operator, multiprocessors=100).tolist() == [warps]


def test_occupancy_is_a_share_and_zero_on_a_cpu() -> None:
    device, operator = get_device("v100"), columns("elementwise")
    full = device.max_warps_per_sm * device.sm_count
    for warps, share in ((full / 2, 0.5), (full, 1.0), (9 * full, 1.0)):
        assert occupancy_of(operator, np.array([warps]), device, device.sm_count).tolist() == [share]
    product = occupancy_of(columns("matmul"), np.array([8.0 * device.sm_count]), device, device.sm_count)
    assert product.tolist() == [0.5]
    assert occupancy_of(operator, np.array([1.0]), get_device("cpu"), 1.0).tolist() == [0.0]


def test_larger_batches_fill_a_gpu() -> None:
    occupancies = []
    for batch in (1, 16, 256):
        workload = Workload("resnet18-cifar", batch)
        cost = default_cost_model().cost(graph_for(workload), get_device("v100"), workload)
        occupancies.append(cost.occupancy_ratio)
    assert occupancies == sorted(occupancies)
    assert 0 < occupancies[0] < 0.5 < occupancies[-1] <= 1
