"""`EGGATLayer`: multi-head graph attention with the edge in score and message, and a GRU gate over its input.

The paper's layer (Liu et al., ISACPP, TPDS 2025, section 4) multiplies a static attention score by an edge
weight. It ranks the neighbours of every node alike but for their edges, and with one neighbour its softmax is
1 and the edge is lost. The default here is the dynamic form of Brody et al. (GATv2, ICLR 2022), with self edges
and with the edge in the message too. The paper's form remains available for ablation as `form="paper"`.
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

    The form `paper` differs in (its second layer, which merges the heads, is W_o here)::

        z_i   = LeakyReLU(W h_i)                                  per head
        s_ij  = scale LeakyReLU((v_t . z_i + v_s . z_j) (W_e e_ij))
        m_i   = W_o concat_heads sum_j a_ij z_j

    Args:
        width: channels of a node, divisible by `heads`.
        edge_width: channels of an edge.
        heads: attention heads.
        form: `gatv2` or `paper`.
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
        if form == "gatv2":
            self.target = nn.Linear(width, width)
            self.source = nn.Linear(width, width, bias=False)
            self.value = nn.Linear(width, width)
            self.edge_score = nn.Linear(edge_width, width, bias=False)
            self.edge_message = nn.Linear(edge_width, width, bias=False)
            self.attention = nn.Parameter(torch.empty(heads, width // heads))
        else:
            self.value = nn.Linear(width, width, bias=False)
            self.edge_score = nn.Linear(edge_width, heads, bias=False)
            self.scale = nn.Parameter(torch.ones(()))
            self.attention = nn.Parameter(torch.empty(heads, 2 * width // heads))
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
        of_target, of_source, value = self._ends(nodes)
        score, value = self._messages(of_target[target] + of_source[source], value[source], edges)
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
        of_target, of_source, value = self._ends(nodes)
        pairs = of_target.unsqueeze(2) + of_source.unsqueeze(1)
        score, value = self._messages(pairs, value.unsqueeze(1).expand(*pairs.shape[:3], self.width), edges)
        score = score.masked_fill(~present[:, None, :, None], -torch.inf)
        # The softmax over a graph without nodes is NaN.
        weight = torch.nan_to_num(score.softmax(2))
        message = (value * weight.unsqueeze(-1)).sum(2).flatten(2)
        gated = self.gate(self.output(message).flatten(0, 1), nodes.flatten(0, 1))
        return gated.view_as(nodes)

    def _ends(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of nodes [..., width]: what each adds to a score as target and as source, and its value [..., width].

        The first two are [..., width], or [..., heads] in the paper's form.
        """
        if self.form == "gatv2":
            return self.target(nodes), self.source(nodes), self.value(nodes)
        state = nn.functional.leaky_relu(self.value(nodes), 0.2)
        by_head = state.unflatten(-1, (self.heads, -1))
        as_target, as_source = self.attention.chunk(2, -1)
        return (by_head * as_target).sum(-1), (by_head * as_source).sum(-1), state

    def _messages(self, pairs: Tensor, value: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [..., heads] and values [..., heads, width / heads] of messages, from the sums of both ends and
        values [..., width]."""
        heads = (self.heads, self.width // self.heads)
        if self.form == "gatv2":
            if self.use_edge:
                pairs = pairs + self.edge_score(edges)
                value = value + self.edge_message(edges)
            score = (nn.functional.leaky_relu(pairs, 0.2).unflatten(-1, heads) * self.attention).sum(-1)
        else:
            if self.use_edge:
                pairs = pairs * self.edge_score(edges)
            score = self.scale * nn.functional.leaky_relu(pairs, 0.2)
        return score, value.unflatten(-1, heads)


def start_at_zero(*layers: nn.Module) -> None:
    """Zero the weights of output layers, so that a network starts out at the quantity that it corrects."""
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
