from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from profiling.training import Phase, TrainingJob

BACKENDS = (torch.backends.cuda.matmul, torch.backends.cudnn)


@pytest.fixture
def _restored() -> Iterator[None]:
    before = [backend.allow_tf32 for backend in BACKENDS]
    yield
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
