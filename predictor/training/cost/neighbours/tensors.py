"""Examples with messages between their operators, as one set of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from models.cost.network import Jobs
from predictor.training.cost.examples import CostExample
from predictor.training.cost.neighbours.job import EDGE_FEATURES, NeighbourJob, stacked
from predictor.training.cost.neighbours.network import NeighbourJobs
from predictor.training.cost.tensors import CostTensors


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourTensors(CostTensors):
    """All examples, whose jobs are `NeighbourJob`.

    Attributes:
        edge_index: [2, E] numbered within each job.
        edges: [E, len(EDGE_FEATURES)].
        edge_start: [J + 1] first edge of each job.
        position: [R].
    """

    edge_index: np.ndarray
    edges: Tensor
    edge_start: np.ndarray
    position: Tensor

    @classmethod
    def of(
        cls, examples: Sequence[CostExample], devices: Sequence[str], campaigns: Sequence[str]
    ) -> NeighbourTensors:
        """As `CostTensors.of`."""
        plain = CostTensors.of(examples, devices, campaigns)
        jobs = [e.job for e in examples if isinstance(e.job, NeighbourJob)]
        index, features, start, position = stacked(jobs)
        return cls(
            **{f.name: getattr(plain, f.name) for f in fields(CostTensors)},
            edge_index=index,
            edges=torch.from_numpy(features),
            edge_start=start,
            position=torch.from_numpy(position),
        )

    def batch(self, jobs: np.ndarray, mean: Tensor, scale: Tensor) -> NeighbourJobs:
        """As `CostTensors.batch`."""
        plain = CostTensors.batch(self, jobs, mean, scale)
        rows, _ = self.operators_of(jobs)
        counts = self.start[jobs + 1] - self.start[jobs]
        offset = np.concatenate([[0], np.cumsum(counts)[:-1]])
        chosen = np.concatenate([np.arange(self.edge_start[j], self.edge_start[j + 1]) for j in jobs])
        shift = np.repeat(offset, self.edge_start[jobs + 1] - self.edge_start[jobs])
        itself = np.arange(len(rows))
        index = np.concatenate([self.edge_index[:, chosen] + shift, np.stack([itself, itself])], 1)
        own = torch.zeros(len(rows), len(EDGE_FEATURES))
        return NeighbourJobs(
            **{f.name: getattr(plain, f.name) for f in fields(Jobs)},
            edge_index=torch.from_numpy(index),
            edges=torch.cat([self.edges[torch.from_numpy(chosen)], own]),
            position=self.position[rows],
        )
