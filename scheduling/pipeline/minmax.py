"""The matrix product with `min` as sum and `max` as product: bottlenecks of chains of stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def chain_bottleneck(first: NDArray[np.float64], rest: NDArray[np.float64]) -> NDArray[np.float64]:
    """`out[a, b] = min over c of max(first[a, c], rest[c, b])`, where both are infinite unless row < column.

    `first` is [rows, n] with rows <= n; its row `a` is boundary `a`. Only a < c < b can be finite, so each
    middle boundary updates one block: n^3 / 6 steps in long vector operations. `rest` may be a single column.
    """
    rows, size = first.shape
    if rest.shape[1] == 1:
        return np.maximum(first, rest[:, 0][None, :]).min(axis=1, keepdims=True)
    out = np.full((rows, size), np.inf)
    if rows == 1:
        np.maximum(first[0][:, None], rest).min(axis=0, out=out[0])
        return out
    buffer = np.empty(rows * size)
    for middle in range(1, size - 1):
        above = min(middle, rows)
        block = buffer[: above * (size - middle - 1)].reshape(above, size - middle - 1)
        np.maximum(first[:above, middle, None], rest[middle, middle + 1 :], out=block)
        target = out[:above, middle + 1 :]
        np.minimum(target, block, out=target)
    return out
