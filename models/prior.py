"""What is known before the network learns: how long a step takes alone, and what queueing says of sharing.

A step alone is the sum of the time in which the device computes, in which the host launches, and of what every step costs
(`StepTimePrior`).

Each job spends a share of its step on every resource. While another wants the same resource, one of them waits. To first
order the excess step time of i that j causes is

    (c + sum_r w_r d_ir d_jr + v_r max(0, d_ir + d_jr - 1)) * exp(sum_k s_k (pace_jk - pace_ik))

The bracket says how often both want the device at the same time (c), or the same resource of it. The exponential says
who waits longer: a device that takes turns gives more of its time to the job with the longer kernels or the more
processes. All of c, w, v are positive and there are few of them, so that a handful of models is enough to fit them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.features import DEMAND_EDGES, DEVICE_FEATURES, EDGE_FEATURES, PACE_FEATURES

_DEMANDS = len(DEMAND_EDGES)
_PACES = len(EDGE_FEATURES) - len(PACE_FEATURES)
# What the bracket is made of; the first is c.
CONTENTION_FEATURES = ("turns", *DEMAND_EDGES)


class StepTimePrior(nn.Module):
    """Solo step time = a busy + b launch + c: how far a device type stays behind its roofline, and the host behind its round figures.

    a depends on the device's data sheet; b and c do not. Starts at a = b = 1 and a c that hardly counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy = nn.Linear(len(DEVICE_FEATURES), 1)
        self.launch = nn.Parameter(torch.zeros(()))
        self.every_step = nn.Parameter(torch.tensor(-9.0))
        nn.init.zeros_(self.busy.weight)
        nn.init.zeros_(self.busy.bias)

    def shift(self, log_factor: float) -> None:
        """Multiply all of a, b and c."""
        with torch.no_grad():
            for parameter in (self.busy.bias, self.launch, self.every_step):
                parameter.add_(log_factor)

    def forward(self, busy_s: Tensor, launch_s: Tensor, device: Tensor) -> Tensor:
        """[G] log seconds; `busy_s` and `launch_s` [G], device [G, len(DEVICE_FEATURES)]."""
        parts = [
            busy_s.clamp_min(1e-7).log() + self.busy(device).squeeze(1),
            launch_s.clamp_min(1e-7).log() + self.launch,
            self.every_step.expand_as(busy_s),
        ]
        return torch.logsumexp(torch.stack(parts), 0)


class ContentionPrior(nn.Module):
    """The form above, with weights per sharing mode and campaign. Output: predicted excess (slowdown - 1) of a member.

    Args:
        settings: columns of the one-hot setting.
    """

    def __init__(self, settings: int) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.full((settings, len(CONTENTION_FEATURES)), -2.0))
        self.pace = nn.Parameter(torch.zeros(settings, len(PACE_FEATURES)))

    def parts(self, edges: Tensor, setting: Tensor) -> Tensor:
        """[..., len(CONTENTION_FEATURES)] what each term adds; edges [..., len(EDGE_FEATURES)], setting [..., settings]."""
        demands = torch.cat([torch.ones_like(edges[..., :1]), edges[..., :_DEMANDS]], -1)
        pace = (edges[..., _PACES:] * (setting @ self.pace)).sum(-1, keepdim=True).clamp(-2.5, 2.5)
        return demands * (setting @ nn.functional.softplus(self.raw)) * pace.exp()

    def forward(self, edges: Tensor, setting: Tensor, between: Tensor) -> Tensor:
        """[S, M] excess of every member, 0 without neighbours.

        Args:
            edges: [S, M, M, len(EDGE_FEATURES)], target on the second axis.
            setting: [S, settings].
            between: [S, M, M] 1 where an edge leads from one member to another.
        """
        return (self.parts(edges, setting[:, None, None]).sum(-1) * between).sum(2)


def bounded_excess(excess: Tensor, occupied: Tensor) -> Tensor:
    """Excess that tends to its bound instead of passing it.

    A neighbour keeps the device for no larger a share of the time than it does alone, since it cannot run faster; so a job
    gets at least the rest, and its slowdown is at most 1 / (1 - occupied).

    Args:
        excess: [T] slowdown - 1.
        occupied: [T] sum of the neighbours' `models.features.occupancy`; from 1 on nothing is bounded.
    """
    return excess / (1.0 + excess * ((1.0 - occupied).clamp_min(0.0) / occupied.clamp_min(1e-3)))
