"""`EfficiencyNetwork`: the cost model as a torch module, for fitting.

`CostModel` computes the same in NumPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.cost.form import (
    EFFECTS,
    HOST_COSTS,
    HOST_START_S,
    HOSTS,
    LATENCY_RANGE,
    LATENCY_S,
    OFFSETS,
    OUTPUTS,
    OVERLAP,
    TIMINGS,
    overlapped,
    slowed_memory,
)
from models.cost.operator_features import OPERATOR_FEATURES
from profiling.operators import KINDS


@dataclass(frozen=True, slots=True)
class Jobs:
    """A batch of J jobs with R operators in all; tensors are float32 unless stated otherwise.

    Attributes:
        features: [R, F] standardised.
        kind, job: [R] int64: kind of the operator, number of its job.
        effects: [2, R] int64: rows of the effects of its device type, and of the type with its precision.
        compute_s, padding_s, serial_s, least_s, block_s, kernels, traffic_s, cached_s: [2, R] per execution;
            0 where a pass does not run. `traffic_s` is at full bandwidth, `cached_s` the part of it that fits
            into the last-level cache. `serial_s` is 0 under a compiler.
        repeat: [R].
        density, double_density: [R] see `OperatorWork`.
        width, strain: [R] see `width_of` and `strain_of`.
        share: [R] share of the multiprocessors that the job may use.
        compiled: [R] 1 if a compiler fused operators; job_compiled: [J] the same.
        optimizer_s, launches, library_launches, host_s, samples: [J]; a compiler lowers only the first launches.
        campaign: [J] int64.
        host: [J] int64: index into `HOSTS`.
        timing: [J] int64: index into `TIMINGS`, which quantity was measured.
    """

    features: Tensor
    kind: Tensor
    job: Tensor
    effects: Tensor
    compute_s: Tensor
    traffic_s: Tensor
    cached_s: Tensor
    block_s: Tensor
    kernels: Tensor
    padding_s: Tensor
    serial_s: Tensor
    least_s: Tensor
    repeat: Tensor
    density: Tensor
    double_density: Tensor
    width: Tensor
    strain: Tensor
    share: Tensor
    compiled: Tensor
    optimizer_s: Tensor
    launches: Tensor
    library_launches: Tensor
    host_s: Tensor
    samples: Tensor
    campaign: Tensor
    job_compiled: Tensor
    timing: Tensor
    host: Tensor


class EfficiencyNetwork(nn.Module):
    """Predicts efficiencies of operators from their features; also has the few constants of a step.

    Args:
        hidden: width of the two layers.
        devices, campaigns: how many have an effect of their own; a number of -1 has none.
        effect_dropout: share of jobs, in training, whose device type is treated as unmeasured.
    """

    def __init__(
        self, hidden: int = 64, devices: int = 0, campaigns: int = 0, effect_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.effect_dropout = effect_dropout
        self.layers = nn.Sequential(
            nn.Linear(len(OPERATOR_FEATURES) + 1, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
        )
        self.output = nn.Linear(hidden, len(OUTPUTS))
        nn.init.normal_(self.output.weight, std=0.01)
        nn.init.zeros_(self.output.bias)
        self.by_kind = nn.Parameter(torch.zeros(2, len(KINDS), len(OUTPUTS)))
        self.device_effect = nn.Parameter(torch.zeros(devices + 1, len(EFFECTS)))
        self.padding = nn.Parameter(torch.tensor(-1.0))
        self.log_pull = nn.Parameter(torch.tensor(1.0))
        self.slowing = nn.Parameter(torch.tensor(-1.0))
        self.host_effect = nn.Parameter(torch.zeros(campaigns + 1, len(HOST_COSTS)))
        self.log_feeding = nn.Parameter(torch.tensor([math.log(0.3), math.log(0.1), math.log(10.0)]))
        self.cached_share = nn.Parameter(torch.tensor(0.0))
        self.optimizer = nn.Parameter(torch.tensor(-0.9))
        self.log_call_s = nn.Parameter(torch.full((len(KINDS),), math.log(25e-6)))
        self.log_host_s = nn.Parameter(torch.tensor(HOST_START_S).log().repeat(len(HOSTS), 1))
        self.log_compiled_launches = nn.Parameter(torch.tensor(math.log(0.3)))

    def operator_times(self, jobs: Jobs) -> Tensor:
        """[2, R] seconds of one execution of each operator, forward and backward."""
        shift = torch.zeros(len(jobs.kind), len(OUTPUTS))
        effects = sum((_effect(self.device_effect, rows) for rows in jobs.effects), torch.zeros(()))
        if self.training and self.effect_dropout:
            kept = torch.rand(len(jobs.launches)) >= self.effect_dropout
            effects = effects * kept[jobs.job][:, None]
        shift[:, [OUTPUTS.index(name) for name in EFFECTS]] = effects
        slowed = slowed_memory(jobs.share, 1.0 + torch.exp(self.log_pull))
        clock = torch.exp(torch.sigmoid(self.slowing) * jobs.strain)
        cached_share = torch.sigmoid(self.cached_share)
        offsets, feeding = torch.tensor(OFFSETS), torch.exp(self.log_feeding)
        times = []
        for side in (0, 1):
            outputs = self.output(self.hidden(jobs, side)) + self.by_kind[side][jobs.kind] + shift + offsets
            compute = jobs.compute_s[side] + torch.sigmoid(self.padding) * jobs.padding_s[side]
            compute = compute + jobs.block_s[side] * torch.exp(outputs[:, 2])
            memory = jobs.traffic_s[side] - (1.0 - cached_share) * jobs.cached_s[side]
            kept = torch.where(jobs.compiled > 0, torch.sigmoid(outputs[:, 4]), 1.0)
            fed = 1.0 + feeding[0] * jobs.density + feeding[2] * jobs.double_density
            compute = compute * clock * fed * torch.exp(-F.logsigmoid(outputs[:, 0]))
            memory = (
                memory
                * slowed
                * kept
                * (1.0 + feeding[1] * jobs.width)
                * torch.exp(-F.logsigmoid(outputs[:, 1]))
            )
            memory = torch.maximum(memory, jobs.serial_s[side])
            joined = (compute.clamp_min(1e-12) ** OVERLAP + memory.clamp_min(1e-12) ** OVERLAP) ** (
                1 / OVERLAP
            )
            joined = torch.maximum(joined, jobs.least_s[side])
            kernels = jobs.kernels[side] * torch.where(
                jobs.compiled > 0, torch.exp(self.log_compiled_launches), 1.0
            )
            varies = (outputs[:, 3] - shift[:, 3]).clamp(-LATENCY_RANGE, LATENCY_RANGE) + shift[:, 3]
            latency = kernels * LATENCY_S * torch.exp(varies)
            runs = (jobs.compute_s[side] + jobs.traffic_s[side]) > 0
            times.append(torch.where(runs, joined + latency, 0.0))
        return torch.stack(times)

    def hidden(self, jobs: Jobs, side: int) -> Tensor:
        """[R, hidden] features behind the efficiencies of each operator's forward (0) or backward (1)
        pass."""
        which = torch.full((len(jobs.kind), 1), float(side))
        return self.layers(torch.cat([jobs.features, which], 1))

    def log_seconds(self, jobs: Jobs) -> Tensor:
        """[J] log seconds of the quantity that was timed for each job."""
        times = self.operator_times(jobs).sum(0) * jobs.repeat
        busy = torch.zeros(len(jobs.launches)).index_add(0, jobs.job, times)
        busy = busy + jobs.optimizer_s * torch.exp(F.softplus(self.optimizer))
        host = torch.exp(self.log_host_s[jobs.host] + _effect(self.host_effect, jobs.campaign))
        launches = jobs.launches * torch.where(
            jobs.job_compiled > 0, torch.exp(self.log_compiled_launches), 1.0
        )
        launching = (launches + jobs.library_launches) * host[:, 0]
        overhead = host[:, 1] + jobs.samples * host[:, 2] + jobs.host_s
        # An operator timed by itself has one call for all its kernels; such a job has one operator, hence one
        # kind.
        call = torch.zeros(len(busy)).index_put((jobs.job,), torch.exp(self.log_call_s)[jobs.kind])
        is_operator = jobs.timing == TIMINGS.index("operator")
        waiting = torch.where(is_operator, call, launching)
        device = overlapped(busy, waiting)
        step = torch.where(is_operator, device, device + overhead)
        return torch.log(torch.where(jobs.timing == TIMINGS.index("busy"), busy, step))

    def penalty(self) -> Tensor:
        """Penalty on the effects of devices and campaigns.

        With it, they differ from the others only if their measurements demand it.
        """
        return (self.device_effect**2).mean() + 0.2 * (self.host_effect**2).mean()


def _effect(table: Tensor, number: Tensor) -> Tensor:
    """Rows of a table of effects; 0 where the number is -1. The last row of the table is never learned."""
    return torch.where((number >= 0)[:, None], table[number.clamp_min(0)], 0.0)
