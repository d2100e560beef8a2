"""Analytic prior of the network: contention as queueing.

Each job spends a share of its step on every resource. If two want the same resource at the same time, one of
them waits. To first order, the excess step time of i caused by j is

    (c + sum_r w_r d_ir d_jr + v_r max(0, d_ir + d_jr - 1)) * exp(sum_k s_k (pace_jk - pace_ik))

The bracket gives how often both want the device (c), or the same resource of it, at the same time. The
exponential gives who waits longer: a device that takes turns gives more of its time to the job with longer
kernels or more processes. All of c, w and v are positive, and there are few enough of them to be fitted to a
handful of models.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.features import DEMAND_EDGES, EDGE_FEATURES, PACE_FEATURES

_DEMANDS = len(DEMAND_EDGES)
_PACES = len(EDGE_FEATURES) - len(PACE_FEATURES)
# The terms of the bracket; the first is c.
CONTENTION_FEATURES = ("turns", *DEMAND_EDGES)
# The exponent is clamped to [-PACE_BOUND, PACE_BOUND].
PACE_BOUND = 2.5


class ContentionPrior(nn.Module):
    """The form above, with weights per sharing mode and campaign.

    Its output is the predicted excess (slowdown - 1) of a member.

    Args:
        settings: number of columns of the one-hot setting.
    """

    def __init__(self, settings: int) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.full((settings, len(CONTENTION_FEATURES)), -2.0))
        self.pace = nn.Parameter(torch.zeros(settings, len(PACE_FEATURES)))

    def parts(self, edges: Tensor, setting: Tensor) -> Tensor:
        """[..., len(CONTENTION_FEATURES)] contribution of each term.

        Args:
            edges: [..., len(EDGE_FEATURES)].
            setting: [..., settings].
        """
        demands = torch.cat([torch.ones_like(edges[..., :1]), edges[..., :_DEMANDS]], -1)
        pace = (
            (edges[..., _PACES:] * (setting @ self.pace)).sum(-1, keepdim=True).clamp(-PACE_BOUND, PACE_BOUND)
        )
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
    """Make the excess approach its bound instead of exceeding it.

    A neighbour cannot run faster than alone, so it occupies the device for no larger a share of the time.
    That leaves a job at least the rest, and its slowdown is at most 1 / (1 - occupied).

    Args:
        excess: [T] slowdown - 1.
        occupied: [T] sum of the neighbours' `models.features.occupancy`; from 1 on there is no bound.
    """
    return excess / (1.0 + excess * ((1.0 - occupied).clamp_min(0.0) / occupied.clamp_min(1e-3)))
