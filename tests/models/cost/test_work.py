from __future__ import annotations

import pytest

from models.cost.work import work_of
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.workload import Workload


def arithmetic_s(device: str, precision: str = "fp32") -> dict[tuple[int, int], tuple[float, float]]:
    """Forward arithmetic by (kernel, stride) of ResNet-50's convolutions, and at the peak of the data sheet."""
    columns = graph_for(Workload.parse(f"torchvision/resnet50:batch_size=8,precision={precision}")).columns
    spec = get_device(device)
    work = work_of(columns, spec, precision)
    seconds: dict[tuple[int, int], tuple[float, float]] = {}
    for i, kernel in enumerate(columns["kernel_height"]):
        if kernel > 0 and columns["groups"][i] == 1:
            direct = columns["forward_flops"][i] / spec.peak_flops("fp32", True)
            seconds[int(kernel), int(columns["stride_height"][i])] = work.compute_s[0, i], direct
    return seconds


def test_3x3_convolutions_with_stride_1_take_fewer_multiplications() -> None:
    seconds = arithmetic_s("quadro-rtx-6000")
    assert seconds[3, 1][0] == pytest.approx(seconds[3, 1][1] / 2.25)
    for window in ((1, 1), (1, 2), (3, 2), (7, 2)):
        assert seconds[window][0] == pytest.approx(seconds[window][1])


@pytest.mark.parametrize("device", ["k80", "v100", "a100", "h100", "cpu"])
def test_on_no_other_device(device: str) -> None:
    seconds = arithmetic_s(device)
    assert seconds[3, 1][0] == pytest.approx(seconds[3, 1][1])


def test_tensor_cores_run_the_direct_form() -> None:
    half = arithmetic_s("quadro-rtx-6000", "amp")
    assert half[3, 1][0] / half[1, 1][0] == pytest.approx(half[3, 1][1] / half[1, 1][1], rel=1e-6)
