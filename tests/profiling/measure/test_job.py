from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiling.errors import InputError
from profiling.measure.job import build_job
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


def test_a_factory_with_an_invalid_result(module: str) -> None:
    with pytest.raises(InputError, match="wrong value"):
        build_job(Workload(f"{module}:nothing"), "cpu")


def test_a_factory_of_workload_and_device() -> None:
    job = build_job(Workload("tests.profiling.measure.jobs:mlp", batch_size=32), "cpu")
    assert job.samples_per_step == 32


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
