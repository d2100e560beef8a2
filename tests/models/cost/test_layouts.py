"""Kernels that read images with the channels last badly."""

from __future__ import annotations

import numpy as np
import pytest

from models.cost.job import JobInput
from models.cost.layouts import are_channels_last, by_channel
from models.cost.operator_features import OPERATOR_FEATURES
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.graph import ComputationGraph
from profiling.workload import Workload

LAYOUTS = ("channels-last", "contiguous")


def graph(model: str) -> ComputationGraph:
    return graph_for(Workload.parse(f"{model}:batch_size=64,precision=amp"))


def job(model: str, layout: str, device: str = "rtx-3090") -> JobInput:
    workload = Workload.parse(f"{model}:batch_size=64,precision=amp,memory_layout={layout}")
    return JobInput.of(graph(model), get_device(device), workload)


def test_kernels_that_go_through_one_channel_at_a_time_move_a_sector_for_each_element() -> None:
    tresnet = graph("timm-0.6/tresnet_m")
    chosen = by_channel(tresnet.columns)
    kinds = [op.kind for op, is_chosen in zip(tresnet.operators, chosen, strict=True) if is_chosen]
    assert set(kinds) == {"batch_norm", "activation"}
    assert kinds.count("batch_norm") == [op.kind for op in tresnet.operators].count("batch_norm")
    last, first = (job("timm-0.6/tresnet_m", layout).work.traffic_bytes for layout in LAYOUTS)
    np.testing.assert_allclose(last[:, chosen], 16 * first[:, chosen])  # of 32 bytes, 2 are used
    np.testing.assert_array_equal(last[:, ~chosen], first[:, ~chosen])


def test_a_processor_reads_either_layout_as_fast() -> None:
    last, first = (job("timm-0.6/tresnet_m", layout, "cpu").work.traffic_bytes for layout in LAYOUTS)
    np.testing.assert_array_equal(last, first)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_that_go_through_one_channel_at_a_time_have_the_features_of_others(layout: str) -> None:
    chosen = by_channel(graph("timm-0.6/tresnet_m").columns)
    features = job("timm-0.6/tresnet_m", layout).features[chosen]
    for name in ("log_groups", "depthwise", "grouped"):
        assert not features[:, OPERATOR_FEATURES.index(name)].any()


def test_only_convolutions_with_weights_for_every_sample_keep_the_channels_first() -> None:
    for model in ("timm-0.6/tresnet_m", "torchvision/resnet50", "torchvision/resnext50_32x4d"):
        assert are_channels_last(graph(model).columns, 64).all()
    per_sample = graph("timm/tf_efficientnet_cc_b0_4e")
    kinds = {
        op.kind
        for op, is_last in zip(per_sample.operators, are_channels_last(per_sample.columns, 64), strict=True)
        if not is_last
    }
    assert kinds <= {"convolution", "depthwise_convolution"}
    assert kinds
