from __future__ import annotations

import torch

from profiling.measure.host_input import Shuffled


def test_what_belongs_to_a_sample_moves_with_it() -> None:
    samples, edges = torch.arange(64), torch.arange(6).reshape(2, 3)
    first, second = (
        batch
        for batch, _ in zip(
            Shuffled([samples, 2 * samples, edges, torch.tensor(7)], seed=0), range(2), strict=False
        )
    )
    for moved, labels, rows, scalar in (first, second):
        assert torch.equal(labels, 2 * moved)
        assert not torch.equal(moved, samples)
        assert torch.equal(moved.sort().values, samples)
        assert (rows.shape, scalar.item()) == (edges.shape, 7)
    assert not torch.equal(first[0], second[0])
