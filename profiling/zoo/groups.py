"""Groups of equal blocks, of which only the first changes width and stride."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn


def grouped(
    block: Callable[[int, int, int, int], nn.Module], groups: Iterable[tuple[int, int, int, int]], inputs: int
) -> list[nn.Module]:
    """Blocks of all groups.

    Args:
        block: takes inputs, outputs, expansion and stride.
        groups: `(expansion, outputs, count, stride)` of each.
        inputs: channels of the first block's input.
    """
    blocks = []
    for expansion, outputs, count, stride in groups:
        for i in range(count):
            blocks.append(block(inputs, outputs, expansion, 1 if i else stride))
            inputs = outputs
    return blocks
