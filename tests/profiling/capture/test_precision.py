from __future__ import annotations

import pytest

from profiling.capture import graph_for
from profiling.capture.precision import with_precision
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


def test_half_precision_halves_held_memory() -> None:
    graph = graph_for(Workload("torchvision/resnet18", batch_size=8))
    half = with_precision(graph, "fp16")
    assert half.parameter_bytes == graph.parameter_bytes / 2
    assert half.activation_bytes == pytest.approx(graph.activation_bytes / 2, rel=0.05)
    assert {op.dtype for op in half.operators if op.kind == "convolution"} == {"float16"}
    assert with_precision(graph, "fp32") is graph
