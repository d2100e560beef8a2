from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.cost.work import strain_of, work_of
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.operators import KINDS
from profiling.workload import Workload


def arithmetic_s(device: str, precision: str = "fp32") -> dict[tuple[int, int], tuple[float, float]]:
    """Forward arithmetic of ResNet-50's convolutions by (kernel, stride), predicted and at peak."""
    columns = graph_for(Workload.parse(f"torchvision/resnet50:batch_size=8,precision={precision}")).columns
    spec = get_device(device)
    work = work_of(columns, spec, precision)
    seconds: dict[tuple[int, int], tuple[float, float]] = {}
    for i, kernel in enumerate(columns["kernel_height"]):
        if kernel > 0 and columns["groups"][i] == 1:
            direct = columns["forward_flops"][i] / spec.peak_flops("fp32", True)
            seconds[int(kernel), int(columns["stride_height"][i])] = work.compute_s[0, i], direct
    return seconds


@pytest.mark.parametrize("device", ["p100", "p4", "v100", "quadro-rtx-6000"])
def test_3x3_convolutions_with_stride_1_take_fewer_multiplications(device: str) -> None:
    seconds = arithmetic_s(device)
    assert seconds[3, 1][0] == pytest.approx(seconds[3, 1][1] / 2.25)
    for window in ((1, 1), (1, 2), (3, 2), (7, 2)):
        assert seconds[window][0] == pytest.approx(seconds[window][1])


@pytest.mark.parametrize("device", ["k80", "mi300x", "cpu"])
def test_winograd_applies_to_no_other_device(device: str) -> None:
    seconds = arithmetic_s(device)
    assert seconds[3, 1][0] == pytest.approx(seconds[3, 1][1])


@pytest.mark.parametrize("device", ["a100", "rtx-3090", "h100", "b200"])
def test_unmeasured_winograd_is_bounded_by_the_direct_form(device: str) -> None:
    columns = graph_for(Workload("torchvision/resnet50", 8)).columns
    work = work_of(columns, get_device(device), "fp32")
    fewer = work.compute_s < work.least_s * (1 - 1e-9)
    is_fast = (columns["kernel_height"] == 3) & (columns["stride_height"] == 1)
    is_fast &= columns["kind"] == KINDS.index("convolution")
    np.testing.assert_array_equal(fewer.all(0), is_fast)
    np.testing.assert_allclose(work.least_s[0], columns["forward_flops"] / get_device(device).fp32_flops)
    in_tf32 = work_of(columns, get_device(device), "tf32")
    np.testing.assert_array_equal(in_tf32.compute_s, in_tf32.least_s)


def test_tensor_cores_run_the_direct_form() -> None:
    half = arithmetic_s("quadro-rtx-6000", "amp")
    assert half[3, 1][0] / half[1, 1][0] == pytest.approx(half[3, 1][1] / half[1, 1][1], rel=1e-6)


def test_boards_that_claim_more_per_watt_than_their_generation_are_slower() -> None:
    assert strain_of(get_device("t4")) == pytest.approx(0.76, abs=0.02)
    assert strain_of(get_device("l4")) > strain_of(get_device("p4")) > 0.0
    for name in ("v100", "rtx-3090", "h100", "cpu"):
        assert strain_of(get_device(name)) == pytest.approx(0.0, abs=0.02)


def test_interpolation_waits_for_memory_once_per_sample_and_channel() -> None:
    """EfficientFormerV2-S0 on timm's RTX 3090, 4090 and 5090: .62, .52 and .70 s for two resizes of 1,024 samples."""
    columns = graph_for(Workload.parse("timm/efficientformerv2_s0:batch_size=1024,precision=amp")).columns
    is_resize = columns["kind"] == KINDS.index("resize")
    work = work_of(columns, get_device("rtx-3090"), "amp")
    np.testing.assert_allclose(work.serial_s[0, is_resize], 1024 * 1024 * 3e-7)
    assert not work.serial_s[:, ~is_resize].any()
    assert not work.serial_s[1].any()
    assert not work_of(columns, get_device("cpu"), "amp").serial_s.any()


def test_tiles_are_padded_and_rows_never_cost_less() -> None:
    job = Workload.parse("torchvision/resnet50:batch_size=1")
    device = get_device("v100")
    before = None
    for batch_size in (1, 2, 3, 8):
        columns = graph_for(replace(job, batch_size=batch_size)).columns
        work = work_of(columns, device, "fp32")
        whole = work.compute_s + work.padding_s
        assert (work.padding_s >= -1e-12).all()
        assert before is None or (whole >= before - 1e-12).all()
        before = whole
    # 1,000 classes are filled up to 1,024, and 8 rows to 64.
    last = int((columns["gemm_n"] == 1000).argmax())
    filled = (64 * 1024) / (8 * 1000)
    assert work.padding_s[0, last] / work.compute_s[0, last] == pytest.approx(filled - 1)
