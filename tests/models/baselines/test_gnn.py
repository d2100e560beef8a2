from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.baselines.gnn import KINDS, SetConvolutions
from models.colocation_network import SetTensors
from profiling.errors import InputError
from tests.models.test_colocation_network import SETTINGS, sets_of


def network(kind: str) -> SetConvolutions:
    torch.manual_seed(0)
    return SetConvolutions(kind, sets_of([1]).member.shape[2] + SETTINGS).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_matter_and_their_order_does_not(kind: str) -> None:
    gnn, sets = network(kind), sets_of([2, 3, 1])
    order = torch.tensor([2, 0, 1])
    shuffled = replace(sets, member=sets.member[:, order], present=sets.present[:, order])
    with torch.no_grad():
        expected, got = gnn(sets), gnn(shuffled)
        apart = torch.cat([gnn(alone(sets, i)) for i in range(3)], 1)
    torch.testing.assert_close(
        got[shuffled.present], expected[:, order][shuffled.present], rtol=1e-4, atol=1e-5
    )
    assert not torch.isclose(apart, expected)[:2][sets.present[:2]].any()
    torch.testing.assert_close(apart[2, 0], expected[2, 0])


def alone(sets: SetTensors, member: int) -> SetTensors:
    """The same members, each in a separate set."""
    column = slice(member, member + 1)
    return replace(
        sets,
        member=sets.member[:, column],
        demand=sets.demand[:, column],
        present=torch.ones(3, 1, dtype=torch.bool),
    )


def test_unknown_kind_is_rejected() -> None:
    with pytest.raises(InputError, match="gcn, gat"):
        SetConvolutions("sage", 8)
