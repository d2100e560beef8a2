"""Layers that the model itself does not train, such as the base of an adapter, with and without a frozen prefix."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from models.cost.job import JobInput, pass_mask, trained_ratio
from models.cost.model import default_cost_model
from profiling.capture import capture_module, capture_zoo
from profiling.capture.options import options_of
from profiling.capture.step import capture_job
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import Workload
from profiling.zoo import build, resolve

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


@pytest.mark.parametrize(
    "spec",
    [
        "bert-base-squad:batch_size=8,precision=amp",
        "efficientnetb0-cifar:batch_size=64",
        "lstm-wikitext2:batch_size=20",
        "vgg11-cifar:batch_size=64",
    ],
)
def test_layers_frozen_at_the_capture_cost_as_much_as_those_frozen_later(spec: str) -> None:
    job, device = replace(resolve(Workload.parse(spec)), data_on_device=True), get_device("v100")
    whole = capture_zoo(job)
    cost = default_cost_model().cost
    for count in {1, len(whole.layers) // 2, len(whole.layers) - 1}:
        frozen = replace(job, frozen_prefix=count)
        later = cost(whole, device, frozen)
        recorded = capture_job(build(frozen, "meta"), "by hand", options_of(job))
        assert recorded.frozen_layers == set(range(count))
        for graph, stated in ((recorded, job), (capture_zoo(frozen), frozen)):
            assert cost(graph, device, stated).step_time_s == pytest.approx(later.step_time_s, rel=0.05)
