from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.cost import default_cost_model
from models.cost.job import pass_mask
from models.features import (
    DEMAND_WIDTH,
    DEVICE_FEATURES,
    EDGE_FEATURES,
    RESOURCES,
    SOLO_FEATURES,
    WORKLOAD_FEATURES,
    Demand,
    capacity_ratio,
    demand_of,
    demand_ratios,
    device_features,
    edge_features,
    occupancy,
    solo_features,
    workload_features,
)
from profiling.capture import capture_zoo
from profiling.devices import get_device
from profiling.workload import SoloProfile, Workload
from tests.predictor.synthetic import MODELS, graph_source


def demand(spec: str, device: str = "v100") -> Demand:
    workload = Workload.parse(spec)
    graph = graph_source(replace(workload, frozen_prefix=0))
    spec = get_device(device)
    return demand_of(graph, default_cost_model().cost(graph, spec, workload), spec, workload)


@given(
    model=st.sampled_from(sorted(MODELS)),
    batch=st.integers(1, 512),
    step=st.floats(1e-6, 10),
    device=st.sampled_from(["v100", "h100", "cpu"]),
)
def test_demands_are_shares(model: str, batch: int, step: float, device: str) -> None:
    workload = Workload(model, batch)
    ratios = demand_ratios(demand(str(workload), device), step, workload)
    assert ratios.shape == (len(RESOURCES),)
    assert ((ratios >= 0) & (ratios <= 1)).all()


def test_measured_utilisation_replaces_the_estimate() -> None:
    solo = SoloProfile(step_time_s=0.1, utilization_ratio=0.37, memory_bandwidth_ratio=0.21)
    ratios = demand_ratios(demand("alpha"), 0.1, Workload("alpha", solo=solo))
    assert ratios[:2].tolist() == [0.37, 0.21]


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_longer_frozen_prefix_demands_less(model: str) -> None:
    layers = len(graph_source(Workload(model)).layers)
    demands = [demand(f"{model}:frozen_prefix={k}") for k in range(layers + 1)]
    for column in ("busy_s", "compute_s", "memory_s", "launch_s", "state_bytes", "activation_bytes"):
        values = [getattr(d, column) for d in demands]
        assert values == sorted(values, reverse=True)
    assert demands[-1].busy_s < demands[0].busy_s


def test_freezing_masks_backward_passes_only() -> None:
    """Two operators per layer, the second with parameters: the first trained one is number 5, a norm."""
    graph = graph_source(Workload("gamma"))
    mask = pass_mask(graph, Workload("gamma", frozen_prefix=2))
    assert mask[0].all()
    assert mask[1].tolist() == [0.0] * 5 + [1.0] * 7
    # A linear layer right behind the frozen prefix computes no gradient of its inputs.
    assert pass_mask(graph, Workload("gamma", frozen_prefix=3))[1].tolist() == [0.0] * 7 + [0.5] + [1.0] * 4
    assert pass_mask(graph, Workload("gamma")).all()


@pytest.mark.parametrize("model", ["resnet18-cifar:batch_size=4", "gpt-125m:batch_size=1,sequence_length=32"])
def test_a_masked_step_has_the_backward_flops_that_autograd_records(model: str) -> None:
    """GPT's last layer is tied to its first: it is frozen with it, but still propagates gradients."""
    workload = Workload.parse(model)
    graph = capture_zoo(workload)
    for prefix in (1, len(graph.layers) // 2, len(graph.layers) - 1, len(graph.layers)):
        frozen = replace(workload, frozen_prefix=prefix)
        recorded, backward = capture_zoo(frozen), pass_mask(graph, frozen)[1]
        masked = float((graph.columns["backward_flops"] * backward * graph.columns["repeat"]).sum())
        assert masked == pytest.approx(recorded.backward_flops, rel=0.01)


def test_absent_measurements_are_zero_beside_a_flag() -> None:
    wanted, device = demand("beta"), get_device("v100")
    assert not solo_features(Workload("beta"), device, wanted).any()
    partly = solo_features(Workload("beta", solo=SoloProfile(memory_bytes=8e9)), device, wanted)
    given_names = {n for n, v in zip(SOLO_FEATURES, partly, strict=True) if v}
    assert given_names == {"has_memory", "memory_capacity_ratio"}


def test_vectors_are_as_long_as_their_names() -> None:
    workload, device = Workload("delta", 32), get_device("t4")
    graph, wanted = graph_source(workload), demand("delta", "t4")
    features = workload_features(graph, device, workload, wanted)
    assert features.shape == (len(WORKLOAD_FEATURES),)
    assert np.isfinite(features).all()
    assert device_features(device).shape == (len(DEVICE_FEATURES),)
    assert 0 < capacity_ratio(wanted, workload, device) < 1


def test_edge_features() -> None:
    target, source = np.linspace(0.1, 1.0, DEMAND_WIDTH), np.linspace(1.0, 0.1, DEMAND_WIDTH)
    forth, back = edge_features(target, source), edge_features(source, target)
    named = dict(zip(EDGE_FEATURES, forth, strict=True))
    assert named["gpu_product"] == pytest.approx(0.1)
    assert named["gpu_excess"] == pytest.approx(0.1)
    assert named["memory_capacity_sum"] == pytest.approx(target[5] + source[5])
    # Demands are the same both ways; pace says who is slower, so it changes sign.
    np.testing.assert_allclose(forth[:8], back[:8])
    np.testing.assert_allclose(forth[8:], -back[8:])
    many = edge_features(np.stack([target] * 3), np.stack([source] * 3))
    np.testing.assert_allclose(many, np.stack([forth] * 3))


def test_occupancy_is_the_measured_utilisation_on_a_gpu_and_1_otherwise() -> None:
    workload = Workload("resnet18-cifar", solo=SoloProfile(utilization_ratio=0.3))
    assert occupancy(workload, get_device("v100")) == 0.3
    assert occupancy(workload.without_solo(), get_device("v100")) == 1.0
    cpu = get_device("cpu")
    assert occupancy(workload, cpu) == 1.0
