"""Graph convolutions that are in common use, over the members of a set: what E-GGAT's edges and prior are compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv

from models.colocation_network import SetTensors
from profiling.errors import InputError

KINDS = ("gcn", "gat")


class SetConvolutions(nn.Module):
    """Two GCN (Kipf and Welling, ICLR 2017) or GAT (Velickovic et al., ICLR 2018) layers over the set graph.

    Members carry the same features as for E-GGAT; what the two of a pair want together is not told, and nothing keeps a
    slowdown at 1 or more.

    Args:
        kind: `gcn` or `gat`.
        width: channels of a member's features and setting together.
        hidden: channels of a layer.
        heads: attention heads of `gat`.
        dropout: share of input channels that is dropped in training.
    """

    def __init__(self, kind: str, width: int, hidden: int = 32, heads: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        if kind not in KINDS:
            raise InputError(
                "kind of convolution is not known", expected="one of " + ", ".join(KINDS), got=kind
            )
        self.kind = kind
        self.drop = nn.Dropout(dropout)
        self.enter = nn.Linear(width, hidden)
        self.layers = nn.ModuleList(
            # The caller's edges hold the self edges already.
            GCNConv(hidden, hidden, add_self_loops=False)
            if kind == "gcn"
            else GATConv(hidden, hidden // heads, heads=heads, add_self_loops=False)
            for _ in range(2)
        )
        self.leave = nn.Linear(hidden, 1)

    def forward(self, sets: SetTensors) -> Tensor:
        """[T] log of co-located / solo throughput."""
        state = torch.relu(self.enter(self.drop(torch.cat([sets.member, sets.setting], 1))))
        for layer in self.layers:
            state = torch.relu(layer(state, sets.edge_index))
        return self.leave(state).squeeze(1)
