"""Layers that the model itself does not train, such as the base of an adapter, with and without a frozen prefix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models.cost.job import JobInput, pass_mask, trained_ratio
from profiling.capture import capture_module
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

WIDTH, RANK, ROWS = 256, 8, 32
LAYERS = 6


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank update (Hu et al., "LoRA", ICLR 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def captured(frozen_prefix: int = 0, static: bool = False) -> ComputationGraph:
    model = nn.Sequential(Adapted(), nn.ReLU(), Adapted())
    job = Workload("adapted", frozen_prefix=frozen_prefix, optimizer="adam")
    return capture_module(model, torch.randn(ROWS, WIDTH), workload=job, static=static)


@pytest.mark.parametrize("static", [False, True])
def test_only_adapters_have_gradients_and_state(static: bool) -> None:
    graph = captured(static=static)
    adapters = 4 * 2 * 2 * WIDTH * RANK
    assert graph.gradient_bytes == adapters
    assert graph.optimizer_state_bytes == 2 * adapters
    assert graph.parameter_bytes == adapters + 4 * 2 * WIDTH**2
    assert graph.frozen_layers == {0, 3}
    # The second base layer passes on the gradient of its input, the first one nothing.
    bases = [op for op in graph.operators if op.parameter_bytes == 4 * WIDTH**2]
    assert [op.backward_flops for op in bases] == [0, 2 * ROWS * WIDTH**2]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("count", range(LAYERS))
def test_a_frozen_prefix_is_counted_on_top(count: int, static: bool) -> None:
    graph, recorded = captured(static=static), captured(count, static)
    job = Workload("adapted", frozen_prefix=count)
    assert trained_ratio(graph, count) * graph.gradient_bytes == pytest.approx(recorded.gradient_bytes)
    flops = (pass_mask(graph, job)[1] * graph.columns["backward_flops"]).sum()
    assert flops == pytest.approx(recorded.backward_flops)
    own = JobInput.of(graph, get_device("v100"), job).optimizer_bytes
    assert own == pytest.approx(recorded.optimizer_bytes)


def test_a_model_that_trains_everything_states_nothing() -> None:
    graph = capture_module(nn.Linear(4, 4), torch.randn(2, 4))
    assert "frozen_layers" not in graph.options
    assert ComputationGraph.from_dict(captured().to_dict()).frozen_layers == {0, 3}


def test_other_values_are_refused() -> None:
    data = captured().to_dict()
    for value in (3, "03", [0.5]):
        data["options"] = {"frozen_layers": value}
        with pytest.raises(InputError, match="frozen_layers"):
            ComputationGraph.from_dict(data)
