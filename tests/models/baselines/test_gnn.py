from __future__ import annotations

import numpy as np
import pytest
import torch

from models.baselines.gnn import KINDS, SetConvolutions
from profiling.errors import InputError
from tests.models.test_colocation_network import SETTINGS, sets_of


def network(kind: str) -> SetConvolutions:
    torch.manual_seed(0)
    return SetConvolutions(kind, sets_of([1]).member.shape[1] + SETTINGS).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_matter_and_their_order_does_not(kind: str) -> None:
    one, sizes = network(kind), [2, 3, 1]
    order = np.random.default_rng(0).permutation(6)
    with torch.no_grad():
        expected, got = one(sets_of(sizes)), one(sets_of(sizes, order=order))
        apart = one(sets_of([1] * 6))
    assert expected.shape == (6,)
    torch.testing.assert_close(got, expected[torch.from_numpy(order)], rtol=1e-4, atol=1e-5)
    assert not torch.isclose(apart[:5], expected[:5]).any()
    torch.testing.assert_close(apart[5], expected[5])


def test_refuses_another_kind() -> None:
    with pytest.raises(InputError, match="gcn, gat"):
        SetConvolutions("sage", 8)
