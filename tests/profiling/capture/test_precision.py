from __future__ import annotations

from dataclasses import replace

import pytest

from profiling.capture import graph_for
from profiling.capture.precision import with_precision
from profiling.graph import ComputationGraph, Operator
from profiling.workload import Workload


@pytest.mark.parametrize("network", ["torchvision/resnet50", "torchvision/vit_b_16"])
@pytest.mark.parametrize(("before", "after"), [("fp32", "amp"), ("amp", "fp32")])
def test_rules_agree_with_recording(network: str, before: str, after: str) -> None:
    own, recorded = (
        graph_for(Workload(network, batch_size=32, precision=precision)) for precision in (before, after)
    )
    derived = with_precision(own, after)
    assert derived.options["precision"] == after
    assert derived.forward_flops == recorded.forward_flops
    assert derived.parameter_bytes == recorded.parameter_bytes
    assert derived.step_bytes == pytest.approx(recorded.step_bytes, rel=0.25)
    assert derived.activation_bytes == pytest.approx(recorded.activation_bytes, rel=0.25)
    assert derived.tensor_core_ratio == pytest.approx(recorded.tensor_core_ratio, abs=0.02)


@pytest.mark.parametrize("network", ["torchvision/resnet50", "torchvision/vit_b_16", "hf/bert-base"])
@pytest.mark.parametrize(("before", "after"), [("fp32", "amp"), ("amp", "fp32"), ("amp", "fp16")])
def test_copies_of_weights_under_autocast_count_in_small_batches(
    network: str, before: str, after: str
) -> None:
    own, recorded = (graph_for(Workload(network, 2, precision=precision)) for precision in (before, after))
    derived = with_precision(own, after)
    for name in ("activation_bytes", "forward_activation_bytes"):
        assert getattr(derived, name) == pytest.approx(getattr(recorded, name), rel=0.25)


def test_autocast_keeps_no_copies_of_frozen_weights() -> None:
    graph = graph_for(Workload("torchvision/vit_b_16", 2))
    trained, *frozen = (
        with_precision(replace(graph, options={**graph.options, **options}), "amp")
        for options in (
            {},
            {"frozen_prefix": len(graph.layers)},
            {"frozen_layers": tuple(range(len(graph.layers)))},
        )
    )
    for each in frozen:
        assert each.activation_bytes < 0.6 * trained.activation_bytes


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp64"])
def test_a_forward_pass_alone_needs_no_more_than_a_step(precision: str) -> None:
    kept = Operator("a", "softmax", bytes_written=8e6, saved_activation_bytes=8e6)
    passed_on = Operator("b", "linear", bytes_written=9e6, dtype="float16")
    graph = ComputationGraph(
        "odd",
        (kept, passed_on),
        activation_bytes=10e6,
        forward_activation_bytes=9e6,
        options={"precision": "amp"},
    )
    derived = with_precision(graph, precision)
    assert derived.forward_activation_bytes <= derived.activation_bytes
    unknown = replace(graph, forward_activation_bytes=0.0)
    assert with_precision(unknown, precision).forward_activation_bytes == 0


def test_half_precision_halves_held_memory() -> None:
    graph = graph_for(Workload("torchvision/resnet18", batch_size=8))
    half = with_precision(graph, "fp16")
    assert half.parameter_bytes == graph.parameter_bytes / 2
    assert half.activation_bytes == pytest.approx(graph.activation_bytes / 2, rel=0.05)
    assert {op.dtype for op in half.operators if op.kind == "convolution"} == {"float16"}
    assert with_precision(graph, "fp32") is graph
