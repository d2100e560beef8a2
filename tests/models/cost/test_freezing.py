"""Work that frozen layers save, compared with graphs recorded with these layers frozen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.cost.job import pass_mask
from profiling.capture import capture_zoo
from profiling.graph import ComputationGraph
from profiling.workload import Workload

BERT = "bert-base-squad:batch_size=1,sequence_length=32"


def kept_bytes(graph: ComputationGraph, job: Workload) -> float:
    """Backward traffic of the graph that remains with the job's frozen layers."""
    return float((pass_mask(graph, job)[1] * graph.columns["backward_bytes"]).sum())


@pytest.mark.parametrize(
    "spec",
    [
        BERT,
        "densenet121-imagenet:batch_size=2",
        "gpt-125m:batch_size=1,sequence_length=32",
        "mobilenetv3small-imagenet:batch_size=2",
        "resnet50-imagenet:batch_size=2",
        "shufflenetv2-imagenet:batch_size=2",
        "swin-tiny-224:batch_size=1",
        "t5-small:batch_size=1,sequence_length=32",
        "vit-base-224:batch_size=1",
    ],
)
def test_frozen_layers_save_what_a_recording_with_them_lacks(spec: str) -> None:
    graph = capture_zoo(Workload.parse(spec))
    whole, layers = graph.total("backward_bytes"), len(graph.layers)
    for count in (layers // 4, layers // 2, 3 * layers // 4, layers - 1):
        job = replace(Workload.parse(spec), frozen_prefix=count)
        recorded = capture_zoo(job).total("backward_bytes")
        assert kept_bytes(graph, job) == pytest.approx(recorded, abs=0.03 * whole)


def test_the_last_layer_alone_has_little_backward_work() -> None:
    graph = capture_zoo(Workload.parse(BERT))
    job = replace(Workload.parse(BERT), frozen_prefix=len(graph.layers) - 1)
    assert kept_bytes(graph, job) < 0.01 * graph.total("backward_bytes")
