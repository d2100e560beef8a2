"""Options that a graph was captured with: neither ignored nor applied twice by a job of that graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.cost.activations import peak_activation_bytes
from predictor import load_predictor
from predictor.examples.featurizer import Featurizer
from predictor.freezing import layer_throughput
from predictor.freezing.layer_times import layer_times
from profiling.capture import capture_zoo, local_workload, register_graph
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import ColocationSet, Workload

RESNET = "resnet18-cifar:batch_size=32,optimizer=adam,data_on_device=true"
GPT = "gpt-125m:batch_size=2,sequence_length=64,optimizer=adam"
REGISTERED = Workload("graph:captured", data_on_device=True)


def only(graph: ComputationGraph) -> Featurizer:
    return Featurizer(lambda _: graph)


@pytest.mark.parametrize("spec", [RESNET, GPT])
@pytest.mark.parametrize("further", [0, 5])
def test_layers_frozen_at_the_capture_are_not_frozen_twice(spec: str, further: int) -> None:
    job = Workload.parse(spec)
    captured = only(capture_zoo(replace(job, frozen_prefix=12)))
    unstated = replace(job, model="graph:captured", frozen_prefix=12 + further if further else 0)
    expected = only(capture_zoo(job)).job(replace(job, frozen_prefix=12 + further), "v100")
    found = captured.job(unstated, "v100")
    assert found.workload.frozen_prefix == 12 + further
    assert found.demand.state_bytes == pytest.approx(expected.demand.state_bytes)
    assert found.demand.activation_bytes == pytest.approx(expected.demand.activation_bytes, rel=0.1)
    assert found.cost.optimizer_s == pytest.approx(expected.cost.optimizer_s)
    # Efficiencies of operators that are only half recorded differ somewhat.
    assert found.cost.step_time_s == pytest.approx(expected.cost.step_time_s, rel=0.15)
    throughput = layer_throughput(unstated, "v100", featurizer=captured)
    assert throughput.frozen_prefix == 12 + further
    assert throughput.step_time_s == pytest.approx(found.cost.step_time_s)
    assert throughput.speedup == pytest.approx(1.0) if not further else throughput.speedup > 1.0


def test_layers_frozen_at_the_capture_cannot_be_trained() -> None:
    made = only(capture_zoo(replace(Workload.parse(RESNET), frozen_prefix=12)))
    with pytest.raises(InputError, match="captured with more frozen layers: expected frozen_prefix=12"):
        made.job(replace(REGISTERED, frozen_prefix=5), "v100")


@pytest.mark.parametrize("precision", ["amp", "bf16", "tf32"])
def test_a_captured_graph_runs_in_its_own_precision(precision: str) -> None:
    job = Workload.parse(f"{RESNET},precision={precision}")
    made = only(capture_zoo(job))
    unstated, stated = (made.job(replace(REGISTERED, precision=p), "a100") for p in ("fp32", precision))
    assert unstated.workload == stated.workload
    assert unstated.cost.step_time_s == stated.cost.step_time_s
    if precision != "amp":
        with pytest.raises(InputError, match="which v100 lacks"):
            made.job(REGISTERED, "v100")


@pytest.mark.parametrize("precision", ["amp", "bf16", "tf32"])
def test_a_stated_precision_is_derived_as_on_the_command_line(precision: str) -> None:
    name = register_graph(capture_zoo(Workload.parse(RESNET)))
    asked = replace(REGISTERED, model=name, precision=precision)
    here = local_workload(f"{name}:precision={precision},data_on_device=true")
    jobs = [Featurizer().job(job, "a100") for job in (asked, here)]
    assert jobs[0].graph == jobs[1].graph
    assert jobs[0].cost.step_time_s == jobs[1].cost.step_time_s


def test_what_was_never_measured_is_told_of_the_captured_precision() -> None:
    name = register_graph(capture_zoo(Workload.parse(f"{RESNET},precision=bf16")))
    asked = ColocationSet("a100", (replace(REGISTERED, model=name),) * 2)
    assert (
        "precision bf16 was never measured under co-location"
        in load_predictor().predict(asked).never_measured
    )


def test_every_pass_of_a_step_has_samples_of_its_own() -> None:
    """A graph tells how many passes its step has, even if the job does not."""
    job = replace(Workload.parse(RESNET), data_on_device=False)
    one, four = (only(capture_zoo(replace(job, gradient_accumulation=passes))) for passes in (1, 4))
    costs = [made.job(job, "v100").cost for made in (one, four)]
    fixed_s = costs[0].overhead_s - (costs[1].overhead_s - costs[0].overhead_s) / 3
    assert 0 < fixed_s < costs[0].overhead_s
    larger = only(capture_zoo(replace(job, batch_size=128))).job(job, "v100").cost
    assert costs[1].overhead_s == pytest.approx(larger.overhead_s)
    speeds = [layer_throughput(job, "v100", featurizer=made) for made in (one, four)]
    passes = [speed.samples_per_s * speed.step_time_s / 32 for speed in speeds]
    assert passes == pytest.approx([1, 4])


@pytest.mark.parametrize("spec", [RESNET, GPT])
def test_passes_of_a_step_share_parameters_and_memory(spec: str) -> None:
    job = Workload.parse(spec)
    one, four = (capture_zoo(replace(job, gradient_accumulation=passes)) for passes in (1, 4))
    for prefix in (0, 1, 5, len(one.layers) // 2, len(one.layers)):
        assert peak_activation_bytes(four, prefix) == pytest.approx(peak_activation_bytes(one, prefix))
    once, times = (layer_times(graph, get_device("v100"), job) for graph in (one, four))
    assert times.parameter_bytes == pytest.approx(once.parameter_bytes)
    assert times.boundary_bytes == pytest.approx(4 * once.boundary_bytes)
    speeds = [layer_throughput(job, "v100", gpus=8, nodes=2, featurizer=only(graph)) for graph in (one, four)]
    assert speeds[1].exchange_s == pytest.approx(speeds[0].exchange_s, rel=0.05)
