"""Convolutions that cuDNN computes by Winograd's algorithm in fp32: the memory used.

Non-fused F(4x4, 3x3): a tile of 4x4 outputs is computed from 6x6 transformed inputs with 36 multiplications
instead of 144; the transformed inputs and outputs go through memory. Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from profiling.graph import ComputationGraph


@dataclass(frozen=True, eq=False)
class Winograd:
    """3x3 convolutions of stride 1 among N operators (0 elsewhere), for the whole batch.

    Attributes:
        channels: [N] the smaller of input and output channels.
        tile_bytes: [N] transformed input and output.
        weight_bytes: [N] transformed weights.
    """

    channels: NDArray[np.int64]
    tile_bytes: Floats
    weight_bytes: Floats

    @classmethod
    def of(cls, graph: ComputationGraph) -> Winograd:
        source = {edge.target: edge.source for edge in reversed(graph.edges)}
        count = len(graph.operators)
        channels, numbers = np.zeros(count, dtype=np.int64), np.zeros((2, count))
        for index, op in enumerate(graph.operators):
            before = graph.operators[source[index]].output_shape if index in source else ()
            if op.kind != "convolution" or len(op.output_shape) != 4 or len(before) != 4:
                continue
            samples, outputs, height, width = op.output_shape
            inputs = before[1]
            # 3x3 weights with or without a bias; a stride above 1 makes the output smaller.
            if before[2:] == (height, width) and 9 <= op.parameter_bytes / (4 * outputs * inputs) < 10:
                tiles = samples * -(-height // 4) * -(-width // 4)
                channels[index] = min(inputs, outputs)
                numbers[:, index] = (
                    4 * 36 * tiles * (inputs + outputs),
                    4 * 36 * inputs * outputs,
                )
        return cls(channels, *numbers)

    def used(self, least_channels: float) -> NDArray[np.bool_]:
        """[N] whether it is such a convolution with at least `least_channels` channels."""
        return (self.channels > 0) & (self.channels >= least_channels)
