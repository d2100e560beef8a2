"""Cost models whose operators see their neighbours, as contenders: does the graph earn its place?"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from predictor.evaluation.protocols.graphs import graph_of
from predictor.evaluation.protocols.published.cost_model import training_examples
from predictor.evaluation.protocols.registry import Contender, register
from profiling.devices import get_device
from profiling.errors import CotenantError
from profiling.workload import Workload

if TYPE_CHECKING:
    from predictor.training.cost.neighbours.job import NeighbourJob

FORMS = (
    ("e-ggat", 1),
    ("e-ggat", 2),
    ("e-ggat", 4),
    ("gine", 2),
    ("sage", 2),
    ("transformer", 1),
    ("readout", 1),
)


class NeighbourCostPredictor:
    """Step times by a cost model with a graph network, fitted to the training rows.

    Args:
        encoder, depth: see `NeighbourNetwork`.
    """

    def __init__(self, encoder: str, depth: int) -> None:
        self.encoder, self.depth = encoder, depth

    def fit(self, train: Bundle, seed: int) -> NeighbourCostPredictor:
        import torch

        from predictor.training.cost.fit import CostConfig, names_of, train_network
        from predictor.training.cost.neighbours.network import NeighbourNetwork
        from predictor.training.cost.neighbours.tensors import NeighbourTensors

        examples = training_examples(
            train.rows[train.points],
            train.y[train.points],
            seed,
            lambda spec, device: neighbour_input(spec, device, self.rounds),
        )
        config = CostConfig(networks=1, seed=seed)
        self.names_ = names_of(examples)
        tensors = NeighbourTensors.of(examples, *self.names_)
        self.mean_ = tensors.features.mean(0)
        self.scale_ = tensors.features.std(0).clamp_min(0.05)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network_ = NeighbourNetwork(
                config.hidden,
                len(self.names_[0]),
                len(self.names_[1]),
                config.effect_dropout,
                self.encoder,
                self.depth,
            )
            train_network(self.network_, tensors, self.mean_, self.scale_, config)
        return self

    @property
    def rounds(self) -> int:
        """Rounds of message passing over which merged operators must be indistinguishable."""
        return 0 if self.encoder in ("transformer", "readout") else self.depth

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN if a network's graph or device is unknown."""
        import torch

        from predictor.training.cost.examples import CostExample, campaign_of
        from predictor.training.cost.neighbours.tensors import NeighbourTensors

        examples = []
        for number, (_, row) in enumerate(test.rows.iterrows()):
            job = neighbour_input(row["workload"], row["device"], self.rounds)
            if job is not None:
                examples.append(CostExample(number, job, 0.0, campaign_of(row)))
        result = np.full(len(test.rows), np.nan)
        if examples:
            tensors = NeighbourTensors.of(examples, *self.names_)
            with torch.no_grad():
                for begin in range(0, len(examples), 64):
                    some = np.arange(begin, min(begin + 64, len(examples)))
                    log_s = self.network_.log_seconds(tensors.batch(some, self.mean_, self.scale_))
                    result[[examples[i].row for i in some]] = np.exp(log_s.numpy())
        return result


@lru_cache(maxsize=20_000)
def neighbour_input(spec: str, device: str, rounds: int) -> NeighbourJob | None:
    """A job with its operators' neighbours; None if it cannot be made."""
    from models.cost.job import JobInput
    from predictor.training.cost.neighbours.job import neighbour_job

    graph = graph_of(spec)
    if graph is None:
        return None
    try:
        return neighbour_job(graph, JobInput.of(graph, get_device(device), Workload.parse(spec)), rounds)
    except CotenantError:
        return None


for _encoder, _depth in FORMS:
    register(
        Contender(
            f"cost-{_encoder}-{_depth}",
            partial(NeighbourCostPredictor, _encoder, _depth),
            version="1",
            targets=("solo_step_time_s",),
            partial=True,
            seconds_per_fold=120,
        )
    )
