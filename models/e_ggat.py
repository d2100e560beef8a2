"""`EGGATLayer`: multi-head graph attention with the edge in score and message, and a GRU gate over its input.

The paper's layer (Liu et al., ISACPP, TPDS 2025, section 4) multiplies a static attention score by an edge
weight; with one neighbour its softmax is 1 and the edge is lost. The default here is the dynamic form of
Brody et al. (GATv2, ICLR 2022), with self edges and with the edge in the message too. The paper's form
remains available for ablation as `form="paper"`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.segments import segment_softmax, segment_sum
from profiling.errors import InputError

FORMS = ("gatv2", "paper")


#: Weights grow with the square of the width; wider networks would not fit in memory.
MOST_CHANNELS = 4096
MOST_LAYERS = 64


def check_layer(section: str, width: int, heads: int, form: str) -> None:
    """Check that layers can have this width, heads and form.

    Raises:
        InputError: they cannot; the message names `section`.
    """
    if width > MOST_CHANNELS:
        raise InputError(
            f"{section}.width is out of range", expected=f"an integer from 1 to {MOST_CHANNELS}", got=width
        )
    if width % heads:
        raise InputError(
            f"{section}.width is not divisible by heads", expected=f"a multiple of {heads}", got=width
        )
    if form not in FORMS:
        raise InputError(f"unknown {section}.form", expected="one of " + ", ".join(FORMS), got=form)


class EGGATLayer(nn.Module):
    """One attention layer; input and output have the same width, because the GRU gate mixes them.

    For target i with in-neighbours j (self included) and edge features e_ij::

        s_ij  = v . LeakyReLU(W_s h_i + W_t h_j + W_e e_ij)       per head
        a_ij  = softmax_j s_ij
        m_i   = W_o concat_heads sum_j a_ij (W_v h_j + W_m e_ij)
        h'_i  = GRU(m_i, h_i)

    Args:
        width: channels of a node, divisible by `heads`.
        edge_width: channels of an edge.
        heads: attention heads.
        form: `gatv2` (above) or `paper` (edge only scales a static score).
        use_edge: False leaves the edge out of score and message (ablation).
    """

    def __init__(
        self, width: int, edge_width: int, heads: int = 4, form: str = "gatv2", use_edge: bool = True
    ) -> None:
        super().__init__()
        check_layer("layer", width, heads, form)
        self.width, self.edge_width, self.heads, self.form, self.use_edge = (
            width,
            edge_width,
            heads,
            form,
            use_edge,
        )
        self.target = nn.Linear(width, width)
        self.source = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.edge_score = nn.Linear(edge_width, width if form == "gatv2" else heads, bias=False)
        self.edge_message = nn.Linear(edge_width, width, bias=False)
        self.attention = nn.Parameter(torch.empty(heads, width // heads))
        self.output = nn.Linear(width, width)
        self.gate = nn.GRUCell(width, width)
        nn.init.xavier_uniform_(self.attention)

    def forward(self, nodes: Tensor, edge_index: Tensor, edges: Tensor) -> Tensor:
        """Apply the layer to a sparse graph.

        Args:
            nodes: [N, width].
            edge_index: [2, E]; row 0 source, row 1 target, self edges included by the caller.
            edges: [E, edge_width].

        Returns:
            [N, width].
        """
        source, target = edge_index[0], edge_index[1]
        score, value = self._messages(
            self.target(nodes)[target] + self.source(nodes)[source], self.value(nodes)[source], edges
        )
        weight = segment_softmax(score, target, nodes.shape[0])
        weighted = (value * weight.unsqueeze(-1)).flatten(1)
        message = segment_sum(weighted, target, nodes.shape[0])
        return self.gate(self.output(message), nodes)

    def dense(self, nodes: Tensor, edges: Tensor, present: Tensor) -> Tensor:
        """Apply the layer to a batch of complete graphs, in which every node also has an edge to itself.

        Args:
            nodes: [S, M, width].
            edges: [S, M, M, edge_width] from source (third axis) to target (second axis); zero from a node to
                itself.
            present: [S, M] mask of existing nodes.

        Returns:
            [S, M, width]; meaningless where no node is present.
        """
        pairs = self.target(nodes).unsqueeze(2) + self.source(nodes).unsqueeze(1)
        value = self.value(nodes).unsqueeze(1).expand_as(pairs)
        score, value = self._messages(pairs, value, edges)
        score = score.masked_fill(~present[:, None, :, None], -torch.inf)
        # The softmax over a graph without nodes is NaN.
        weight = torch.nan_to_num(score.softmax(2))
        message = (value * weight.unsqueeze(-1)).sum(2).flatten(2)
        gated = self.gate(self.output(message).flatten(0, 1), nodes.flatten(0, 1))
        return gated.view_as(nodes)

    def _messages(self, pairs: Tensor, value: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [..., heads] and values [..., heads, width / heads] of messages, from [..., width] of both
        ends."""
        heads = (self.heads, self.width // self.heads)
        if self.form == "gatv2":
            if self.use_edge:
                pairs = pairs + self.edge_score(edges)
                value = value + self.edge_message(edges)
            score = (nn.functional.leaky_relu(pairs, 0.2).unflatten(-1, heads) * self.attention).sum(-1)
        else:
            score = (nn.functional.leaky_relu(pairs.unflatten(-1, heads), 0.2) * self.attention).sum(-1)
            if self.use_edge:
                score = nn.functional.leaky_relu(score * self.edge_score(edges), 0.2)
        return score, value.unflatten(-1, heads)


def start_at_zero(*layers: nn.Module) -> None:
    """Zero the weights of output layers, so that a network starts out at the quantity that it corrects."""
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
