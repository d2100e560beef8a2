from __future__ import annotations

import pytest
import torch

from models.e_ggat import FORMS, EGGATLayer
from profiling.errors import InputError

# Two nodes that see each other and themselves.
PAIR = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]])


def layer(form: str = "gatv2", **options: bool) -> EGGATLayer:
    torch.manual_seed(0)
    return EGGATLayer(8, 3, heads=2, form=form, **options)


@pytest.mark.parametrize("form", FORMS)
def test_shape_and_gradient(form: str) -> None:
    attention = layer(form)
    nodes, edges = torch.randn(2, 8, requires_grad=True), torch.randn(4, 3)
    result = attention(nodes, PAIR, edges)
    assert result.shape == (2, 8)
    result.sum().backward()
    assert nodes.grad is not None
    assert torch.isfinite(nodes.grad).all()


def test_a_single_neighbours_edge_matters() -> None:
    """With a softmax over a single neighbour, the paper's form ignores the edge; ours does not."""
    nodes, alone, moved = torch.randn(2, 8), torch.tensor([[0], [1]]), {}
    for form in FORMS:
        with torch.no_grad():
            forth, back = (layer(form)(nodes, alone, sign * torch.ones(1, 3)) for sign in (1, -1))
        moved[form] = float((forth - back)[1].abs().max())
    assert moved["gatv2"] > 1e-3
    assert moved["paper"] == 0.0


def test_the_papers_form_by_hand() -> None:
    attention, nodes, edges = layer("paper"), torch.randn(2, 8), torch.randn(4, 3)
    with torch.no_grad():
        attention.scale.fill_(0.7)
        got = attention(nodes, PAIR, edges)
        leaky = torch.nn.LeakyReLU(0.2)
        z, weight = (
            leaky(nodes @ attention.value.weight.T).unflatten(1, (2, 4)),
            edges @ attention.edge_score.weight.T,
        )
        heads = []
        for h, vector in enumerate(attention.attention):
            score = torch.full((2, 2), -torch.inf)  # of target and source
            for edge, (j, i) in enumerate(PAIR.T.tolist()):
                score[i, j] = 0.7 * leaky(torch.cat([z[i, h], z[j, h]]) @ vector * weight[edge, h])
            heads.append(score.softmax(1) @ z[:, h])
        expected = attention.gate(attention.output(torch.cat(heads, 1)), nodes)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("form", FORMS)
def test_sparse_and_dense_agree(form: str) -> None:
    attention, nodes, edges = layer(form), torch.randn(3, 8), torch.randn(3, 3, 3)
    target, source = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
    sparse = attention(nodes, torch.stack([source, target]), edges.flatten(0, 1))
    dense = attention.dense(nodes[None], edges[None], torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(dense[0], sparse)


@pytest.mark.parametrize("form", FORMS)
def test_edge_switch(form: str) -> None:
    nodes, edges = torch.randn(2, 8), torch.randn(4, 3)
    for use_edge, expected in ((True, True), (False, False)):
        attention = layer(form, use_edge=use_edge)
        changed = not torch.equal(attention(nodes, PAIR, edges), attention(nodes, PAIR, edges * 5 + 1))
        assert changed is expected


@pytest.mark.parametrize("form", FORMS)
def test_numbering_of_nodes_and_order_of_edges_do_not_matter(form: str) -> None:
    attention = layer(form)
    nodes, edge_index, edges = torch.randn(5, 8), torch.randint(0, 5, (2, 12)), torch.randn(12, 3)
    expected = attention(nodes, edge_index, edges)
    order, shuffle = torch.randperm(5), torch.randperm(12)
    new_name = torch.argsort(order)
    got = attention(nodes[order], new_name[edge_index][:, shuffle], edges[shuffle])
    torch.testing.assert_close(got, expected[order])


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(InputError, match="multiple of 3"):
        EGGATLayer(8, 3, heads=3)
    with pytest.raises(InputError, match="gatv2, paper"):
        EGGATLayer(8, 3, heads=2, form="gat")
