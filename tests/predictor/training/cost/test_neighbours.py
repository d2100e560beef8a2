from __future__ import annotations

import numpy as np
import pytest
import torch

from models.cost.job import JobInput
from predictor.training.cost.examples import CostExample
from predictor.training.cost.fit import CostConfig, names_of, train_network
from predictor.training.cost.neighbours.job import neighbour_job
from predictor.training.cost.neighbours.network import ENCODERS, NeighbourNetwork
from predictor.training.cost.neighbours.tensors import NeighbourTensors
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import Workload

SPECS = ("torchvision/resnet18:batch_size=8", "torchvision/mobilenet_v2:batch_size=8,precision=amp")


def examples(rounds: int | None, spec_of: tuple[str, ...] = SPECS) -> list[CostExample]:
    """Two jobs; with `rounds` None only operators that stay equal after many rounds are merged."""
    result = []
    for row, spec in enumerate(spec_of):
        workload = Workload.parse(spec)
        graph = graph_for(workload)
        job = JobInput.of(graph, get_device("v100"), workload)
        result.append(
            CostExample(row, neighbour_job(graph, job, 40 if rounds is None else rounds), -2.0, "lab")
        )
    return result


def asked(network: NeighbourNetwork, given: list[CostExample]) -> torch.Tensor:
    tensors = NeighbourTensors.of(given, *names_of(given))
    mean, scale = torch.zeros(tensors.features.shape[1]), torch.ones(tensors.features.shape[1])
    with torch.no_grad():
        return network.eval().log_seconds(tensors.batch(np.arange(len(given)), mean, scale))


def network(encoder: str, depth: int, given: list[CostExample]) -> NeighbourNetwork:
    torch.manual_seed(0)
    made = NeighbourNetwork(8, *(len(n) for n in names_of(given)), 0.0, encoder, depth)
    torch.nn.init.normal_(made.leave.weight, std=0.5)
    return made


@pytest.mark.parametrize("encoder", ["e-ggat", "gine"])
def test_operators_of_one_colour_are_interchangeable(encoder: str) -> None:
    """Merging operators that two layers cannot tell apart changes no prediction."""
    few, many = examples(2), examples(None)
    assert len(few[0].job.kind) < len(many[0].job.kind)
    made = network(encoder, 2, few)
    torch.testing.assert_close(asked(made, few), asked(made, many), rtol=1e-4, atol=1e-5)


def test_more_rounds_distinguish_more_operators() -> None:
    sizes = [len(examples(rounds)[1].job.kind) for rounds in (0, 1, 2, 4)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 2
    repeats = {float(examples(rounds)[1].job.work.repeat.sum()) for rounds in (0, 1, 2)}
    assert len(repeats) == 1


@pytest.mark.parametrize("encoder", ENCODERS)
def test_neighbours_matter_at_any_batch_size(encoder: str) -> None:
    given = examples(1)
    made = network(encoder, 1, given)
    alone = NeighbourNetwork(8, *(len(n) for n in names_of(given)), 0.0, encoder, 1)
    alone.load_state_dict(made.state_dict())
    torch.nn.init.zeros_(alone.leave.weight)
    assert not torch.allclose(asked(made, given), asked(alone, given))
    larger = examples(1, tuple(spec.replace("batch_size=8", "batch_size=16") for spec in SPECS))
    assert (asked(made, larger) >= asked(made, given)).all()


def test_learns() -> None:
    given = examples(1)
    made = network("e-ggat", 1, given)
    tensors = NeighbourTensors.of(given, *names_of(given))
    mean, scale = tensors.features.mean(0), tensors.features.std(0).clamp_min(0.05)
    losses: list[float] = []
    config = CostConfig(networks=1, hidden=8, epochs=15, learning_rate=2e-2)
    train_network(made, tensors, mean, scale, config, lambda _, loss: losses.append(loss))
    assert losses[-1] < 0.7 * losses[0]


def test_unknown_encoder() -> None:
    with pytest.raises(InputError, match="encoder"):
        NeighbourNetwork(8, 0, 0, 0.0, "guess", 1)
