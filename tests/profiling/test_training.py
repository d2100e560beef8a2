from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from profiling.errors import InputError
from profiling.training import Phase, TrainingJob, prepared_job
from profiling.workload import Workload

BACKENDS = (torch.backends.cuda.matmul, torch.backends.cudnn)


@pytest.fixture
def _restored() -> Iterator[None]:
    before = [backend.allow_tf32 for backend in BACKENDS]
    yield
    torch.backends.fp32_precision = "none"
    for backend, allow in zip(BACKENDS, before, strict=True):
        backend.allow_tf32 = allow


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_tf32_is_enabled_for_tf32_jobs_only(precision: str) -> None:
    for backend in BACKENDS:
        backend.allow_tf32 = precision != "tf32"
    with FakeTensorMode():
        batch = torch.empty(2, 8, device="cuda")
    phase = Phase(lambda model, batch, memo: model(batch).mean())
    TrainingJob(nn.ReLU(), batch, (phase,), batch_size=2, precision=precision)
    assert [backend.allow_tf32 for backend in BACKENDS] == [precision == "tf32"] * 2


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_tf32_follows_the_job_and_not_what_a_module_set_for_all(precision: str) -> None:
    torch.backends.fp32_precision = "tf32" if precision == "fp32" else "ieee"
    with FakeTensorMode():
        batch = torch.empty(2, 8, device="cuda")
    phase = Phase(lambda model, batch, memo: model(batch).mean())
    TrainingJob(nn.ReLU(), batch, (phase,), batch_size=2, precision=precision)
    cudnn: Any = torch.backends.cudnn
    used = {op.fp32_precision for op in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)}
    assert used == {"ieee" if precision == "fp32" else "tf32"}


def test_a_loss_that_is_not_a_tensor() -> None:
    phase = Phase(lambda model, batch, memo: {"loss": model(batch).mean()})  # type: ignore[arg-type, return-value]
    job = TrainingJob(nn.Linear(4, 4), torch.ones(2, 4), (phase,), batch_size=2, optimizer="none")
    with pytest.raises(
        InputError, match="the loss is not a tensor: expected one number, as a tensor, got dict"
    ):
        job.step()


def test_a_loss_of_several_numbers() -> None:
    phase = Phase(lambda model, batch, memo: model(batch).mean(1))
    job = TrainingJob(nn.Linear(4, 4), torch.ones(2, 4), (phase,), batch_size=2, optimizer="none")
    with pytest.raises(InputError, match=r"the loss is not one number: .*got shape \(2,\)"):
        job.step()


def test_a_gradient_scaler_with_a_trained_layer_that_takes_no_part() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model["used"].requires_grad_(False)
    phase = Phase(lambda module, batch, memo: module["used"](batch).mean())  # type: ignore[index]
    job = TrainingJob(model, torch.ones(2, 4), (phase,), batch_size=2)
    job._scaler = torch.amp.GradScaler("cpu")  # which AMP has on a GPU
    job.step()
    model["used"].requires_grad_(True)
    job = TrainingJob(model, torch.ones(2, 4), (phase,), batch_size=2)
    job._scaler = torch.amp.GradScaler("cpu")
    before = model["used"].weight.detach().clone()  # type: ignore[union-attr, operator]
    job.step()
    assert not before.equal(model["used"].weight)  # type: ignore[arg-type]


def test_a_frozen_phase_of_a_shared_forward_pass_has_no_backward_pass() -> None:
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4)})
    model["first"].requires_grad_(False)

    def loss(module: nn.Module, batch: torch.Tensor, memo: dict[str, torch.Tensor]) -> torch.Tensor:
        if "out" not in memo:
            memo["out"] = module["second"](module["first"](batch)).mean()  # type: ignore[index]
        return memo["out"]

    phases = [Phase(loss, (name,), shares_forward=True) for name in ("first", "second")]
    job = TrainingJob(model, torch.ones(2, 4), phases, batch_size=2)
    before = model["second"].weight.detach().clone()  # type: ignore[union-attr, operator]
    job.step()
    assert not before.equal(model["second"].weight)  # type: ignore[arg-type]


def test_complex_parameters_stay_complex() -> None:
    for precision, dtype in (("fp64", torch.complex128), ("fp16", torch.complex64)):
        model = nn.Linear(4, 4)
        model.modes = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
        batch = torch.zeros(2, 4, dtype=torch.complex64)
        job = prepared_job(model, batch, (), 2, Workload("module", precision=precision))
        assert job.model.modes.dtype == job.batch.dtype == dtype
