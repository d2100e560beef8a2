"""`NeighbourNetwork`: efficiencies that also depend on an operator's neighbours.

It starts out as the network without messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, SAGEConv

from models.cost.network import EfficiencyNetwork, Jobs
from models.e_ggat import EGGATLayer, start_at_zero
from models.segments import segment_sum
from predictor.training.cost.neighbours.job import EDGE_FEATURES
from profiling.errors import InputError

ENCODERS = ("e-ggat", "gine", "sage", "transformer", "readout")
_WIDTH, _HEADS = 32, 4


@dataclass(frozen=True, slots=True)
class NeighbourJobs(Jobs):
    """Jobs with messages between their operators.

    Attributes:
        edge_index: [2, E] source and target, self edges included.
        edges: [E, len(EDGE_FEATURES)].
        position: [R] 0 to 1.
    """

    edge_index: Tensor
    edges: Tensor
    position: Tensor


class NeighbourNetwork(EfficiencyNetwork):
    """Like `EfficiencyNetwork`, with messages from neighbours added to the last hidden layer, for both
    passes.

    No message depends on the batch size, hence neither does an efficiency, and step times still never fall as
    the batch grows.

    Args:
        encoder: `e-ggat`; `gine` (Hu et al., ICLR 2020) or `sage` (Hamilton et al., NeurIPS 2017);
            `transformer` (attention between all operators of a job, with their positions in topological
            order); `readout` (the mean of all operators, weighted by bytes moved).
        depth: number of layers.
    """

    def __init__(
        self, hidden: int, devices: int, campaigns: int, dropout: float, encoder: str, depth: int
    ) -> None:
        super().__init__(hidden, devices, campaigns, dropout)
        if encoder not in ENCODERS:
            raise InputError("unknown encoder", expected="one of " + ", ".join(ENCODERS), got=encoder)
        self.encoder = encoder
        self.enter = nn.Linear(hidden, _WIDTH)
        self.messages = nn.ModuleList(self._layer() for _ in range(depth))
        self.leave = nn.Linear(_WIDTH, 2 * hidden)
        start_at_zero(self.leave)

    def _layer(self) -> nn.Module:
        if self.encoder == "e-ggat":
            return EGGATLayer(_WIDTH, len(EDGE_FEATURES), _HEADS)
        if self.encoder == "gine":
            inner = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH))
            return GINEConv(inner, edge_dim=len(EDGE_FEATURES))
        if self.encoder == "sage":
            return SAGEConv(_WIDTH, _WIDTH)
        if self.encoder == "transformer":
            return _Attention()
        return nn.Linear(_WIDTH, _WIDTH)

    def operator_times(self, jobs: Jobs) -> Tensor:
        """As `EfficiencyNetwork.operator_times`."""
        assert isinstance(jobs, NeighbourJobs)
        none = torch.zeros(len(jobs.kind), 1)
        state = self.enter(self.layers(torch.cat([jobs.features, none], 1)))
        for layer in self.messages:
            state = self._next(layer, state, jobs)
        self._change = self.leave(F.silu(state)).unflatten(1, (2, -1))
        return super().operator_times(jobs)

    def hidden(self, jobs: Jobs, side: int) -> Tensor:
        """As `EfficiencyNetwork.hidden`."""
        return super().hidden(jobs, side) + self._change[:, side]

    def _next(self, layer: nn.Module, state: Tensor, jobs: NeighbourJobs) -> Tensor:
        if self.encoder == "e-ggat":
            return layer(state, jobs.edge_index, jobs.edges)
        if self.encoder == "gine":
            return state + F.silu(layer(state, jobs.edge_index, jobs.edges))
        if self.encoder == "sage":
            return state + F.silu(layer(state, jobs.edge_index))
        if self.encoder == "transformer":
            return layer(state, jobs)
        weight = (jobs.traffic_s.sum(0) * jobs.repeat).unsqueeze(1)
        count = len(jobs.launches)
        whole = segment_sum(weight, jobs.job, count).clamp_min(1e-12)
        mean = segment_sum(state * weight, jobs.job, count) / whole
        return state + F.silu(layer(mean))[jobs.job]


class _Attention(nn.Module):
    """Multi-head attention between a job's operators.

    A repeated operator counts as often as it is repeated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.normed = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.place = nn.Linear(8, _WIDTH)
        self.whole = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.output = nn.Linear(_WIDTH, _WIDTH)
        self.inner = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.SiLU(), nn.Linear(2 * _WIDTH, _WIDTH))

    def forward(self, state: Tensor, jobs: NeighbourJobs) -> Tensor:
        count = len(jobs.launches)
        sizes = torch.bincount(jobs.job, minlength=count)
        begin = torch.cumsum(sizes, 0) - sizes
        column = torch.arange(len(state)) - begin[jobs.job]
        angle = jobs.position.unsqueeze(1) * math.pi * torch.tensor([1.0, 2.0, 4.0, 8.0])
        entered = self.norm(state) + self.place(torch.cat([angle.sin(), angle.cos()], 1))
        padded = torch.zeros(count, int(sizes.max()), _WIDTH).index_put((jobs.job, column), entered)
        bias = torch.full(padded.shape[:2], -torch.inf).index_put((jobs.job, column), jobs.repeat.log())
        query, key, value = (
            x.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for x in self.whole(padded).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=bias[:, None, None, :])
        state = state + self.output(seen.transpose(1, 2).flatten(2)[jobs.job, column])
        return state + self.inner(self.normed(state))
