from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiling.errors import InputError
from profiling.measure.job import build_job, prepare
from profiling.measure.request import RunRequest
from profiling.workload import Workload

FACTORIES = """
import torch

def make(batch_size=4):
    return torch.nn.Linear(8, 2), torch.randn(batch_size, 8)

def wide(batch_size=4, width=16):
    return torch.nn.Linear(width, 2), torch.randn(batch_size, width)

def nothing():
    return None

class OwnStep:
    model, samples_per_step = torch.nn.Linear(8, 2), 4

    def step(self):
        self.model(torch.ones(4, 8))

def own_step(workload, device):
    return OwnStep()

def options(batch_size=4, **more):
    return make(batch_size)

def needs(width, batch_size=4):
    return wide(batch_size, width)

def needs_two(width, height):
    return wide(4, width)

def needs_device(device):
    return make()

def no_step(workload, device):
    return torch.nn.Linear(8, 2)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "factories_to_measure.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "factories_to_measure"


def test_factories_for_capture_can_be_measured(module: str) -> None:
    job = build_job(Workload(f"{module}:make", batch_size=16, optimizer="adam", frozen_prefix=0), "cpu")
    assert (job.samples_per_step, job.optimizer_name) == (16, "adam")
    before = job.model.weight.detach().clone()
    job.step()
    assert not before.equal(job.model.weight)


def test_a_factory_may_have_parameters_with_defaults(module: str) -> None:
    job = build_job(Workload(f"{module}:wide", batch_size=8), "cpu")
    assert tuple(job.batch.shape) == (8, 16)


def test_a_factory_may_take_any_options(module: str) -> None:
    assert build_job(Workload(f"{module}:options", batch_size=8), "cpu").batch_size == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("needs", r"requires width: .*got needs\(width, batch_size=4\); give width a default"),
        ("needs_two", "raised TypeError for a workload and a device: .*one that requires width and height"),
        ("needs_device", r"requires device: .*got needs_device\(device\)"),
    ],
)
def test_a_factory_that_requires_other_arguments(module: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_job(Workload(f"{module}:{name}"), "cpu")


def test_a_factory_with_an_invalid_result(module: str) -> None:
    with pytest.raises(InputError, match="wrong value"):
        build_job(Workload(f"{module}:nothing"), "cpu")


def test_a_factory_of_workload_and_device() -> None:
    job = build_job(Workload("tests.profiling.measure.jobs:mlp", batch_size=32), "cpu")
    assert job.samples_per_step == 32


def test_a_job_with_its_own_step(module: str) -> None:
    job, facts = prepare({"workload": f"{module}:own_step:batch_size=4"}, "cpu")
    job.step()
    assert (facts["samples_per_step"], facts["total_layers"], facts["parameter_count"]) == (4, 1, 18)
    assert not facts["data_on_device"]  # a step of its own may load what it trains on
    with pytest.raises(InputError, match="expected an object with step, model, samples_per_step, got Linear"):
        prepare({"workload": f"{module}:no_step"}, "cpu")
    with pytest.raises(InputError, match="expected an object with batch, got OwnStep without batch"):
        prepare({"workload": f"{module}:own_step", "host_input": "loader"}, "cpu")


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad"])
def test_optimisers_work_but_weights_stay(module: str, optimizer: str) -> None:
    job, _ = prepare({"workload": f"{module}:make:optimizer={optimizer}"}, "cpu")
    before = job.model.weight.detach().clone()
    for _ in range(3):
        job.step()
    assert before.equal(job.model.weight)
    assert bool(job.optimizers[0].state) == (optimizer != "sgd")


@pytest.mark.parametrize("spec", ["factories_to_measure:make", "neumf-ml1m:batch_size=4"])
@pytest.mark.usefixtures("module")
def test_the_batch_size_is_that_of_a_pass_and_not_of_a_step(spec: str) -> None:
    colon = "," if "=" in spec else ":"
    _, facts = prepare({"workload": f"{spec}{colon}gradient_accumulation=3"}, "cpu")
    assert (facts["batch_size"], facts["samples_per_step"]) == (4, 12)


def test_a_precision_that_cannot_be_run_is_refused(module: str) -> None:
    with pytest.raises(InputError, match="jobs in fp8 can be predicted, but not run"):
        RunRequest("solo", (Workload("resnet18-cifar", precision="fp8"),))
    with pytest.raises(InputError, match="jobs in fp8 can be predicted, but not run"):
        build_job(Workload(f"{module}:make", precision="fp8"), "cpu")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "inference"),
        ("framework", "tensorflow"),
        ("compiler", "compile"),
        ("memory_layout", "channels-last"),
    ],
)
def test_an_option_that_the_step_would_ignore_is_refused(module: str, option: str, value: str) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(InputError, match=f"cannot be measured with this {option}"):
        RunRequest("solo", (Workload("resnet18-cifar", **options),))
    with pytest.raises(InputError, match=f"cannot be measured with this {option}"):
        build_job(Workload(f"{module}:make", **options), "cpu")
    # A factory that takes the workload writes its own step.
    build_job(Workload("tests.profiling.measure.jobs:mlp", **options), "cpu")


@pytest.mark.parametrize(
    "name",
    [
        "model.onnx",
        "my-model.json",
        "resnet.graph.txt",
        "0123456789abcdef",
        "graph:0123abcd",
        "timm/resnet50",
    ],
)
def test_a_graph_without_code_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"no code to run: expected a model of .*, or module:factory"):
        RunRequest("solo", (Workload(name),))
