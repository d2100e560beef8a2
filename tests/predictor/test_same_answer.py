"""One cost model: the same job gets the same step time everywhere."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from models.cost import default_cost_model
from models.cost.model import SHIPPED
from predictor import load_predictor
from predictor.campaigns.plan import candidate
from predictor.freezing import layer_throughput
from profiling.capture import graph_for, register_graph
from profiling.devices import get_device
from profiling.workload import ColocationSet, Workload
from scheduling.pipeline.computation import operator_times

JOB = Workload("torchvision/resnet50", 32, data_on_device=True)
ALL = 107  # atomic layers


@pytest.mark.parametrize("device", ["v100", "h100"])
def test_step_time_is_the_same_everywhere(device: str) -> None:
    spec = get_device(device)
    cost = default_cost_model().cost(graph_for(JOB), spec, JOB)
    predictor = load_predictor("default")
    alone = predictor.predict(ColocationSet(device, (JOB,))).members[0]
    assert alone.solo_step_time_s.value == pytest.approx(cost.step_time_s, rel=1e-6)
    assert alone.step_time_s.value == pytest.approx(cost.step_time_s, rel=1e-6)
    assert layer_throughput(JOB, device, 0).step_time_s == pytest.approx(cost.step_time_s)
    assert predictor.throughput(JOB, device, 0).step_time_s == pytest.approx(cost.step_time_s, rel=1e-6)
    assert candidate(JOB, spec).step_time_s == pytest.approx(cost.step_time_s)
    times = operator_times(graph_for(JOB), spec)
    assert sum(map(sum, times)) == pytest.approx(cost.operators.busy_s.sum())


def test_a_graph_of_a_compiled_module_is_timed_as_compiled_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = graph_for(Workload("torchvision/resnet50", 8))
    graph = replace(plain, options={**plain.options, "compiler": "compile", "memory_layout": "channels-last"})
    job, spec, predictor = Workload(register_graph(graph)), get_device("v100"), load_predictor("default")
    stated = replace(job, batch_size=8, compiler="compile", memory_layout="channels-last")
    cost = default_cost_model().cost(graph, spec, stated)
    assert (
        cost.step_time_s
        < 0.9 * default_cost_model().cost(graph, spec, replace(job, batch_size=8)).step_time_s
    )
    for asked in (job, stated):
        alone = predictor.predict(ColocationSet("v100", (asked,))).members[0]
        assert alone.solo_step_time_s.value == pytest.approx(cost.step_time_s, rel=1e-6)
        assert predictor.throughput(asked, "v100", 0).step_time_s == pytest.approx(cost.step_time_s, rel=1e-6)
        assert layer_throughput(asked, "v100", 0).step_time_s == pytest.approx(cost.step_time_s)
    assert sum(map(sum, operator_times(graph, spec))) == pytest.approx(cost.operators.busy_s.sum())


@pytest.mark.parametrize("prefix", [0, 1, 50, 100, ALL])
def test_a_frozen_prefix_is_predicted_alike_everywhere(prefix: int) -> None:
    predictor = load_predictor("default")
    job = replace(JOB, frozen_prefix=prefix)
    predicted = predictor.predict(ColocationSet("v100", (job,))).members[0]
    # From the unfrozen job, and from the frozen one
    for answer in (predictor.throughput(JOB, "v100", prefix), predictor.throughput(job, "v100")):
        assert answer.step_time_s == pytest.approx(predicted.step_time_s.value, rel=1e-6)
        assert answer.memory_bytes == pytest.approx(predicted.memory_bytes.value, rel=1e-9)


def test_the_shipped_predictor_was_trained_with_the_shipped_cost_model() -> None:
    import predictor

    def digest(folder: Path) -> str:
        return hashlib.sha256((folder / "cost.safetensors").read_bytes()).hexdigest()

    checkpoint = Path(predictor.__file__).with_name("checkpoints") / "default"
    assert digest(checkpoint / "cost") == digest(SHIPPED)
