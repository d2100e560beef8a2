"""Step times of the shipped cost model keep to the order of options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.cost import default_cost_model
from models.cost.order import LOAD_WIDTH, at_most, load_of, without_load
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.workload import Workload

MORE = {
    "batch_size": (4, 8, 32),
    "gradient_accumulation": (1, 2),
    "frozen_prefix": (3, 0),
    "sm_share_ratio": (0.3, 1.0),
    "activation_checkpointing": (False, True),
    "data_on_device": (True, False),
    "mode": ("inference", "training"),
}


@pytest.mark.parametrize("device", ["v100", "h100", "rtx-3090", "a100:mig=1g", "cpu"])
@pytest.mark.parametrize(
    "name",
    [
        "resnet18-cifar",
        "resnet18-cifar:precision=amp,compiler=compile",
        "lstm-wikitext2",
        "neumf-ml1m",
        "autoencoder-ml20m:precision=amp",
    ],
)
def test_more_work_takes_no_less_time(name: str, device: str) -> None:
    random, base = np.random.default_rng(0), replace(Workload.parse(name), batch_size=8)
    jobs = [
        replace(base, **{option: values[random.integers(len(values))] for option, values in MORE.items()})
        for _ in range(24)
    ]
    load = np.array([load_of(job) for job in jobs])
    model, spec = default_cost_model(), get_device(device)
    step_s = np.array([model.cost(graph_for(job.captured()), spec, job).step_time_s for job in jobs])
    ordered = at_most(load, load)
    assert ordered.sum() > 2 * len(jobs)
    assert (step_s[:, None] <= step_s * (1 + 1e-9))[ordered].all()
    assert {without_load(job) for job in jobs} == {without_load(base)}


@pytest.mark.parametrize("device", ["v100", "a100", "rtx-4090"])
@pytest.mark.parametrize(
    "name", ["resnet18-cifar", "densenet121-imagenet", "vgg19-cifar", "mobilenetv2-cifar"]
)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_checkpointing_makes_a_forward_pass_no_faster(name: str, device: str, layout: str) -> None:
    job = Workload(name, 4, compiler="compile", memory_layout=layout, data_on_device=True)
    model, spec = default_cost_model(), get_device(device)
    plain, spare = (
        model.cost(graph_for(w.captured()), spec, w)
        for w in (job, replace(job, activation_checkpointing=True))
    )
    np.testing.assert_array_equal(spare.operators.busy_s[0], plain.operators.busy_s[0])
    assert (spare.operators.busy_s[1] >= plain.operators.busy_s[1]).all()
    assert spare.step_time_s > plain.step_time_s


@pytest.mark.parametrize("device", ["p100", "v100", "h100", "a100:mig=1g", "cpu"])
@pytest.mark.parametrize("name", ["neumf-ml1m", "autoencoder-ml20m", "ppo-lunarlander", "vgg11-cifar"])
def test_inference_takes_no_longer_than_training(name: str, device: str) -> None:
    """Samples that are cheap to compute are dear to the host, whose costs are fitted to each mode's own scripts."""
    model, spec = default_cost_model(), get_device(device)
    before_s = 0.0
    for batch_size in (8, 64, 1024, 4096):
        job = Workload(name, batch_size, optimizer="none")
        graph = graph_for(job.captured())
        inference = model.cost(graph, spec, replace(job, mode="inference"))
        assert inference.step_time_s <= model.cost(graph, spec, job).step_time_s
        assert inference.step_time_s >= max(before_s, inference.floor_s)
        assert inference.overhead_s >= 0
        assert inference.busy_s <= inference.step_time_s
        before_s = inference.step_time_s


def test_each_option_has_a_place() -> None:
    assert len(MORE) == LOAD_WIDTH == len(load_of(Workload("alpha")))
