"""Sums, means and softmax over groups of rows.

They do the work of `scatter` and `softmax` in `torch_geometric.utils`, whose import loads torch's compiler
and takes half of a command's run time.
"""

from __future__ import annotations

from torch import Tensor


def segment_sum(values: Tensor, index: Tensor, count: int) -> Tensor:
    """[count, ...] sums of the rows of `values` [N, ...] per group, given by `index` [N]."""
    return values.new_zeros(count, *values.shape[1:]).scatter_add_(0, _expanded(index, values), values)


def segment_mean(values: Tensor, index: Tensor, count: int) -> Tensor:
    """[count, ...] means; 0 for an empty group."""
    sizes = segment_sum(values.new_ones(values.shape[0]), index, count).clamp(min=1)
    total = segment_sum(values, index, count)
    return total / _expanded(sizes, total)


def segment_softmax(values: Tensor, index: Tensor, count: int) -> Tensor:
    """[N, ...] softmax over the rows of each group."""
    largest = values.new_zeros(count, *values.shape[1:]).scatter_reduce_(
        0, _expanded(index, values), values.detach(), reduce="amax", include_self=False
    )
    powers = (values - largest.index_select(0, index)).exp()
    return powers / (segment_sum(powers, index, count) + 1e-16).index_select(0, index)


def _expanded(per_row: Tensor, like: Tensor) -> Tensor:
    return per_row.view(-1, *[1] * (like.dim() - 1)).expand_as(like)
