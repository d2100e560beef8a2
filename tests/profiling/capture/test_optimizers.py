from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.capture.live import LiveBytes
from profiling.capture.optimizers import STATES, TEMPORARIES
from profiling.training import make_optimizer, tensors_of


class Watch(TorchDispatchMode):
    def __init__(self, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.live = LiveBytes(({t.untyped_storage()._cdata for t in held},), lambda _: None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_of(out):
            self.live.add(tensor)
        return out


@pytest.mark.parametrize("name", [name for name in STATES if name != "none"])
def test_state_and_temporaries_are_those_of_torch(name: str) -> None:
    parameters = [torch.nn.Parameter(torch.ones(100, 100)) for _ in range(8)]
    optimizer = make_optimizer(name, parameters)
    assert optimizer is not None
    for group in optimizer.param_groups:
        group["foreach"] = True  # as by default on a GPU
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # creates the state
    state = [*tensors_of([list(of_one.values()) for of_one in optimizer.state.values()])]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    watch = Watch([*parameters, *gradients, *state])
    with watch:
        optimizer.step()
    size = sum(parameter.nbytes for parameter in parameters)
    assert watch.live.peak / size == pytest.approx(TEMPORARIES[name], abs=0.01)
    assert sum(tensor.nbytes for tensor in state) / size == pytest.approx(STATES[name], abs=0.01)
