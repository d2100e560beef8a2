from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.freezing import layer_times
from predictor.freezing.winograd import Winograd
from profiling.devices import get_device
from tests.predictor.freezing.test_memory_fit import convolutions

V100 = get_device("v100")


def test_counts_transformed_tiles() -> None:
    found = Winograd.of(convolutions(2, samples=8, channels=128))
    # The first convolution's input is not an operator's output: not known, not transformed. ReLUs are none.
    assert found.channels.tolist() == [0, 0, 128, 0]
    assert found.flops[2] == 2 * 36 * 8 * 16 * 128 * 128
    assert found.tile_bytes[2] == 4 * 36 * 8 * 16 * 256
    assert found.used(256.0).sum() == 0
    assert found.used().sum() == 1


def test_wide_convolutions_are_faster_in_fp32_only() -> None:
    chain = convolutions(2, samples=64, channels=512)
    direct = 2.0 * 9 * 512 * 512 * 64 * 16 * 16
    worked = tuple(
        replace(op, forward_flops=direct, backward_flops=2 * direct) if op.kind == "convolution" else op
        for op in chain.operators
    )
    chain = replace(chain, operators=worked)
    fp32, amp = (layer_times(chain, V100, precision).forward_s for precision in ("fp32", "amp"))
    assert fp32[1] < 0.5 * fp32[0]
    assert amp[1] == pytest.approx(amp[0], rel=0.05)


def test_batch_is_copied_to_the_device() -> None:
    chain = replace(convolutions(2), host_input_bytes=V100.pcie_bytes_per_s)
    without = layer_times(replace(chain, host_input_bytes=0.0), V100).overhead_s
    assert layer_times(chain, V100).overhead_s == pytest.approx(1.0 + without)
