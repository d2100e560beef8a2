"""Examples as one set of tensors, from which batches are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.cost.form import TIMINGS
from models.cost.job import JobInput, effect_names
from models.cost.network import Jobs
from models.cost.operator_features import fused
from models.cost.work import Floats, strain_of, width_of
from predictor.training.cost.examples import CostExample


@dataclass(frozen=True, slots=True, eq=False)
class CostTensors:
    """All examples: J jobs with R operators in all. Mappings are from names of `Jobs`, with its shapes.

    Attributes:
        features: [R, F] of all operators, not standardised.
        start: [J + 1] first operator of each job.
        by_operator: [..., R].
        shared: [..., J] what all operators of a job have in common; in `Jobs` by operator.
        by_job: [J].
        target, weight: [J] log seconds, and weight in the loss.
    """

    features: Tensor
    start: np.ndarray
    by_operator: dict[str, Tensor]
    shared: dict[str, Tensor]
    by_job: dict[str, Tensor]
    target: Tensor
    weight: Tensor

    @classmethod
    def of(
        cls, examples: Sequence[CostExample], devices: Sequence[str], campaigns: Sequence[str]
    ) -> CostTensors:
        """Stack examples; devices and campaigns not named have no effect of their own."""
        jobs = [e.job for e in examples]
        effects = [effect_names(j.device.name, j.precision) for j in jobs]

        def joined(values_of: Callable[[JobInput], Floats]) -> Tensor:
            return torch.from_numpy(np.concatenate([values_of(j) for j in jobs], -1).astype(np.float32))

        def floats(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32)

        def numbers(names: Sequence[str], of: Iterable[str]) -> Tensor:
            place = {name: k for k, name in enumerate(names)}
            return torch.tensor([place.get(name, -1) for name in of], dtype=torch.int64)

        def traffic_s(job: JobInput) -> Floats:
            return job.work.traffic_bytes / job.device.memory_bandwidth_bytes_per_s

        def cached_s(job: JobInput) -> Floats:
            cached_bytes = np.minimum(job.work.traffic_bytes, job.device.l2_bytes)
            return cached_bytes / job.device.memory_bandwidth_bytes_per_s

        return cls(
            features=torch.from_numpy(np.concatenate([j.features for j in jobs])),
            start=np.concatenate([[0], np.cumsum([len(j.kind) for j in jobs])]).astype(np.int64),
            by_operator={
                "kind": torch.from_numpy(np.concatenate([j.kind for j in jobs])),
                "compute_s": joined(lambda j: j.work.compute_s),
                "traffic_s": joined(traffic_s),
                "cached_s": joined(cached_s),
                "block_s": joined(lambda j: j.work.block_s),
                "kernels": joined(lambda j: j.work.kernels),
                "padding_s": joined(lambda j: j.work.padding_s),
                "serial_s": joined(lambda j: j.work.serial_s * (not j.is_compiled)),
                "least_s": joined(lambda j: j.work.least_s),
                "repeat": joined(lambda j: j.work.repeat),
                "density": joined(lambda j: j.work.density),
                "double_density": joined(lambda j: j.work.double_density),
            },
            shared={
                "effects": torch.stack([numbers(devices, names) for names in zip(*effects, strict=True)]),
                "width": floats(width_of(j.device) for j in jobs),
                "strain": floats(strain_of(j.device) for j in jobs),
                "share": floats(j.sm_share_ratio for j in jobs),
            },
            by_job={
                "optimizer_s": floats(
                    j.optimizer_bytes / j.device.memory_bandwidth_bytes_per_s for j in jobs
                ),
                "launches": floats(j.launches for j in jobs),
                "library_launches": floats(j.library_launches for j in jobs),
                "host_s": floats(
                    j.host_bytes / j.device.pcie_bytes_per_s if j.host_bytes else 0.0 for j in jobs
                ),
                "samples": floats(j.samples for j in jobs),
                "campaign": numbers(campaigns, [e.campaign for e in examples]),
                "job_compiled": floats(j.is_compiled for j in jobs),
                "timing": torch.tensor([TIMINGS.index(e.timing) for e in examples], dtype=torch.int64),
                "host": torch.tensor([j.host for j in jobs], dtype=torch.int64),
            },
            target=floats(e.log_s for e in examples),
            weight=floats(e.weight for e in examples),
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
        by_operator = {name: values[..., rows] for name, values in self.by_operator.items()}
        by_job = {name: values[which] for name, values in self.by_job.items()}
        return Jobs(
            features=((self.features[rows] - mean) / scale).clamp(-20, 20),
            job=job,
            compiled=by_job["job_compiled"][job] * torch.from_numpy(fused(by_operator["kind"].numpy())),
            **by_operator,
            **{name: values[..., which[job]] for name, values in self.shared.items()},
            **by_job,
        )
