"""Examples as one set of tensors, from which batches are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.cost.form import TIMINGS
from models.cost.job import effect_names
from models.cost.network import Jobs
from models.cost.operator_features import fused
from models.cost.work import strain_of, width_of
from predictor.training.cost.examples import CostExample


@dataclass(frozen=True, slots=True, eq=False)
class CostTensors:
    """All examples.

    Attributes:
        features: [R, F] of all operators, not standardised.
        start: [J + 1] first operator of each job.
        target, weight: [J] log seconds, and weight in the loss.
    """

    features: Tensor
    start: np.ndarray
    kind: Tensor
    passes: Tensor
    repeat: Tensor
    density: Tensor
    double_density: Tensor
    width: Tensor
    strain: Tensor
    share: Tensor
    by_job: Tensor
    effects: Tensor
    campaign: Tensor
    timing: Tensor
    target: Tensor
    weight: Tensor

    @classmethod
    def of(
        cls, examples: Sequence[CostExample], devices: Sequence[str], campaigns: Sequence[str]
    ) -> CostTensors:
        """Stack examples; devices and campaigns not named have no effect of their own."""
        jobs = [e.job for e in examples]
        start = np.concatenate([[0], np.cumsum([len(j.kind) for j in jobs])]).astype(np.int64)
        effects = [effect_names(j.device.name, j.precision) for j in jobs]
        passes = []
        for job in jobs:
            work, bandwidth = job.work, job.device.memory_bandwidth_bytes_per_s
            cached = np.minimum(work.traffic_bytes, job.device.l2_bytes) / bandwidth
            passes.append(
                np.stack(
                    [
                        work.compute_s,
                        work.traffic_bytes / bandwidth,
                        cached,
                        work.block_s,
                        work.kernels,
                        work.padding_s,
                        work.serial_s * (not job.is_compiled),
                        work.least_s,
                    ]
                ).astype(np.float32)
            )
        by_job = [
            (
                j.optimizer_bytes / j.device.memory_bandwidth_bytes_per_s,
                j.launches,
                j.host_bytes / j.device.pcie_bytes_per_s if j.host_bytes else 0.0,
                float(j.samples),
                float(j.is_compiled),
                float(j.host),
                j.library_launches,
            )
            for j in jobs
        ]

        def numbers(names: Sequence[str], of: list[str]) -> Tensor:
            place = {name: k for k, name in enumerate(names)}
            return torch.tensor([place.get(name, -1) for name in of], dtype=torch.int64)

        return cls(
            torch.from_numpy(np.concatenate([j.features for j in jobs])),
            start,
            torch.from_numpy(np.concatenate([j.kind for j in jobs])),
            torch.from_numpy(np.concatenate(passes, 2)),
            torch.from_numpy(np.concatenate([j.work.repeat for j in jobs]).astype(np.float32)),
            torch.from_numpy(np.concatenate([j.work.density for j in jobs]).astype(np.float32)),
            torch.from_numpy(np.concatenate([j.work.double_density for j in jobs]).astype(np.float32)),
            torch.tensor([width_of(j.device) for j in jobs], dtype=torch.float32),
            torch.tensor([strain_of(j.device) for j in jobs], dtype=torch.float32),
            torch.tensor([j.sm_share_ratio for j in jobs], dtype=torch.float32),
            torch.tensor(by_job, dtype=torch.float32),
            torch.stack([numbers(devices, list(names)) for names in zip(*effects, strict=True)]),
            numbers(campaigns, [e.campaign for e in examples]),
            torch.tensor([TIMINGS.index(e.timing) for e in examples], dtype=torch.int64),
            torch.tensor([e.log_s for e in examples], dtype=torch.float32),
            torch.tensor([e.weight for e in examples], dtype=torch.float32),
        )

    def __len__(self) -> int:
        return len(self.target)

    def operators_of(self, jobs: np.ndarray) -> tuple[Tensor, Tensor]:
        """Numbers of all operators of some jobs, and for each the position of its job among them."""
        counts = self.start[jobs + 1] - self.start[jobs]
        begin = np.repeat(self.start[jobs] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        rows = begin + np.arange(counts.sum())
        return torch.from_numpy(rows), torch.from_numpy(np.repeat(np.arange(len(jobs)), counts))

    def batch(self, jobs: np.ndarray, mean: Tensor, scale: Tensor) -> Jobs:
        """The network's input for some jobs."""
        rows, job = self.operators_of(jobs)
        which = torch.from_numpy(jobs)
        passes, by_job = self.passes[:, :, rows], self.by_job[which]
        features = ((self.features[rows] - mean) / scale).clamp(-20, 20)
        return Jobs(
            features=features,
            kind=self.kind[rows],
            job=job,
            effects=self.effects[:, which][:, job],
            compute_s=passes[0],
            traffic_s=passes[1],
            cached_s=passes[2],
            block_s=passes[3],
            kernels=passes[4],
            padding_s=passes[5],
            serial_s=passes[6],
            least_s=passes[7],
            repeat=self.repeat[rows],
            density=self.density[rows],
            double_density=self.double_density[rows],
            width=self.width[which][job],
            strain=self.strain[which][job],
            share=self.share[which][job],
            compiled=by_job[:, 4][job] * torch.from_numpy(fused(self.kind[rows].numpy())),
            optimizer_s=by_job[:, 0],
            launches=by_job[:, 1],
            library_launches=by_job[:, 6],
            host_s=by_job[:, 2],
            samples=by_job[:, 3],
            campaign=self.campaign[which],
            job_compiled=by_job[:, 4],
            timing=self.timing[which],
            host=by_job[:, 5].long(),
        )
