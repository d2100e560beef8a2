"""What a `module:factory` may return, and the errors for invalid ones."""

from pathlib import Path

import pytest

from profiling.capture import capture_factory
from profiling.capture.factory import factory_job
from profiling.errors import InputError
from profiling.workload import Workload

FACTORIES = """
import torch
from torch import nn
from profiling.training import Phase, TrainingJob

def whole(batch_size=8):
    model = nn.Linear(8, 2)
    phase = Phase(lambda model, batch, memo: model(batch).mean())
    return TrainingJob(
        model, torch.randn(batch_size, 8), (phase,), batch_size=batch_size, optimizer="adam", gradient_accumulation=2
    )

def fixed():
    return nn.Linear(8, 2), torch.randn(8, 8)

def time_first(batch_size=8):
    return nn.Linear(8, 2), torch.randn(50, batch_size, 8)

constant = 3
"""


@pytest.fixture(autouse=True)
def _factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_training_job_keeps_the_options_it_was_built_with() -> None:
    graph = capture_factory(Workload("some_factories:whole", batch_size=4))
    assert (graph.options["optimizer"], graph.options["gradient_accumulation"]) == ("adam", 2)
    assert graph.optimizer_state_bytes == 2 * graph.parameter_bytes
    assert factory_job(Workload("some_factories:whole", optimizer="adam"), "cpu").samples_per_step == 16


@pytest.mark.parametrize(
    "option",
    [
        {"precision": "bf16"},
        {"optimizer": "sgd"},
        {"frozen_prefix": 1},
        {"gradient_accumulation": 4},
        {"activation_checkpointing": True},
    ],
)
def test_an_option_that_contradicts_a_training_job_is_refused(option: dict[str, object]) -> None:
    workload = Workload.from_mapping({"model": "some_factories:whole", **option})
    for make in (capture_factory, lambda job: factory_job(job, "cpu")):
        with pytest.raises(InputError, match=f"has its own {next(iter(option))}"):
            make(workload)


@pytest.mark.parametrize("option", ["batch_size", "sequence_length"])
def test_an_option_that_a_factory_does_not_accept_is_refused(option: str) -> None:
    workload = Workload.from_mapping({"model": "some_factories:fixed", option: 64})
    for make in (capture_factory, lambda job: factory_job(job, "cpu")):
        with pytest.raises(InputError, match=f"takes no {option}"):
            make(workload)
    assert capture_factory(Workload("some_factories:fixed")).batch_size == 8


@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_batch_size_is_the_factorys_argument_and_not_the_first_dimension(batch_size: int | None) -> None:
    workload = Workload("some_factories:time_first", batch_size=batch_size)
    expected = batch_size or 8
    assert capture_factory(workload).batch_size == expected
    assert factory_job(workload, "cpu").batch_size == expected


@pytest.mark.parametrize("name", ["some_factories:constant", "some_factories:__doc__", "torch:zeros"])
def test_invalid_factories(name: str) -> None:
    with pytest.raises(InputError, match="is not a factory"):
        capture_factory(Workload(name))
