"""Sums, means and softmax over groups, compared with PyTorch Geometric."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import scatter, softmax

from models.segments import segment_mean, segment_softmax, segment_sum


@pytest.mark.parametrize("shape", [(50,), (50, 4), (50, 4, 3), (0, 4)])
def test_values_and_gradients_equal_those_of_pytorch_geometric(shape: tuple[int, ...]) -> None:
    source = torch.Generator().manual_seed(0)
    values = torch.randn(*shape, generator=source, requires_grad=True)
    index = torch.randint(0, 9, shape[:1], generator=source)  # group 9 is empty
    for theirs, ours in (
        (scatter(values, index, 0, 10, "sum"), segment_sum(values, index, 10)),
        (scatter(values, index, 0, 10, "mean"), segment_mean(values, index, 10)),
        (softmax(values, index, num_nodes=10), segment_softmax(values, index, 10)),
    ):
        assert torch.equal(theirs, ours)
        weight = torch.randn(ours.shape, generator=source)
        (expected,) = torch.autograd.grad((theirs * weight).sum(), values)
        (gradient,) = torch.autograd.grad((ours * weight).sum(), values)
        assert torch.equal(expected, gradient)
