"""The shipped predictor with frozen prefixes: freezing more layers costs neither time nor memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import load_predictor
from profiling.capture import graph_for
from profiling.workload import ColocationSet, Workload


@pytest.mark.parametrize(
    ("device", "spec"),
    [
        ("v100", "timm/mobilenetv2_100:batch_size=16,precision=amp"),
        ("a100", "hf/bert-base:batch_size=8,data_on_device=true"),
        ("h100", "torchvision/resnet50:batch_size=32,precision=bf16"),
        ("v100", "lstm-wikitext2:batch_size=20"),
    ],
)
def test_more_frozen_layers_are_never_slower_and_never_take_more_memory(device: str, spec: str) -> None:
    job = Workload.parse(spec)
    layers = len(graph_for(job).layers)
    prefixes = sorted({*range(0, layers, max(1, layers // 16)), layers - 1, layers})
    jobs = [replace(job, frozen_prefix=k) for k in prefixes]
    arrays = load_predictor("default").predict_arrays([ColocationSet(device, (j,)) for j in jobs])
    for values in (arrays.step_time_s[:, 0], arrays.memory_bytes[:, 0], arrays.memory_upper_bytes):
        # Sums of fewer operators are rounded differently.
        assert (np.diff(values) <= 1e-12 * values[:-1]).all()
        assert values[-1] < values[0]


@pytest.mark.parametrize("name", ["ppo-lunarlander", "vgg11-cifar"])
def test_a_frozen_prefix_makes_no_difference_to_inference(name: str) -> None:
    job = Workload(name, 32, mode="inference", precision="bf16", compiler="compile")
    other = Workload("lstm-wikitext2")
    predictor, layers = load_predictor("default"), len(graph_for(job.captured()).layers)
    for others in ((), (other,)):
        whole, frozen = (
            predictor.predict_arrays([ColocationSet("rtx-4090", (replace(job, frozen_prefix=k), *others))])
            for k in (0, layers)
        )
        np.testing.assert_array_equal(frozen.step_time_s, whole.step_time_s)
        np.testing.assert_array_equal(frozen.memory_bytes, whole.memory_bytes)
    whole, frozen = (predictor.throughput(job, "rtx-4090", k) for k in (0, layers))
    assert frozen.step_time_s == whole.step_time_s
    assert frozen.forward_s == whole.forward_s > 0
    assert frozen.backward_s == frozen.optimizer_s == 0
