"""Common graph convolutions over the members of a set, for comparison with E-GGAT's edges and prior."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import DenseGATConv, DenseGCNConv

from models.colocation_network import SetTensors
from profiling.errors import InputError

KINDS = ("gcn", "gat")


class SetConvolutions(nn.Module):
    """Two GCN (Kipf and Welling, ICLR 2017) or GAT (Velickovic et al., ICLR 2018) layers over the set graph.

    Members have the same features as for E-GGAT; pairwise demands are not among the inputs, and slowdowns are
    not bounded below by 1.

    Args:
        kind: `gcn` or `gat`.
        width: channels of a member's features and setting together.
        hidden: channels of a layer.
        heads: attention heads of `gat`.
        dropout: share of input channels dropped in training.
    """

    def __init__(self, kind: str, width: int, hidden: int = 32, heads: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        if kind not in KINDS:
            raise InputError("unknown kind of convolution", expected="one of " + ", ".join(KINDS), got=kind)
        self.drop = nn.Dropout(dropout)
        self.enter = nn.Linear(width, hidden)
        self.layers = nn.ModuleList(
            DenseGCNConv(hidden, hidden)
            if kind == "gcn"
            else DenseGATConv(hidden, hidden // heads, heads=heads)
            for _ in range(2)
        )
        self.leave = nn.Linear(hidden, 1)

    def forward(self, sets: SetTensors) -> Tensor:
        """[S, M] log of co-located / solo throughput."""
        setting = sets.setting.unsqueeze(1).expand(-1, sets.member.shape[1], -1)
        state = torch.relu(self.enter(self.drop(torch.cat([sets.member, setting], -1))))
        # Without self edges, the softmax over an absent member's neighbours would be NaN.
        itself = torch.eye(sets.present.shape[1], dtype=torch.bool, device=sets.present.device)
        adjacency = (sets.present.unsqueeze(2) & sets.present.unsqueeze(1) | itself).float()
        for layer in self.layers:
            state = torch.relu(layer(state, adjacency, mask=sets.present, add_loop=False))
        return self.leave(state).squeeze(-1)
