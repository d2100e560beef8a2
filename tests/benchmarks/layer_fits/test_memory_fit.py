from __future__ import annotations

import numpy as np
import pytest

from benchmarks.layer_fits.memory_fit import CENTRE, MemoryModel
from benchmarks.layer_fits.memory_shape import MemoryShape, border_bytes
from profiling.errors import InputError
from profiling.graph import ComputationGraph, Operator, TensorEdge
from tests.predictor.freezing.graphs import graph

UNIT = 128 * 16 * 16 * 4.0  # bytes of a tensor of 128 channels, per sample


def convolutions(layers: int = 4, samples: int = 8, channels: int = 128) -> ComputationGraph:
    """A chain of 3x3 convolutions and ReLUs in one Sequential, each of which keeps its output."""
    size = UNIT * samples * channels / 128
    weights = 9.0 * channels**2 * 4.0
    operators: list[Operator] = []
    for layer in range(layers):
        for kind, held in (("convolution", weights), ("activation", 0.0)):
            operators.append(
                Operator(
                    f"{kind}{layer}",
                    kind,
                    bytes_read=size + held,
                    bytes_written=size,
                    parameter_bytes=held,
                    saved_activation_bytes=size,
                    output_shape=(samples, channels, 16, 16),
                    module_path=f"features.{len(operators)}",
                    layer_index=layer if held else -1,
                )
            )
    return ComputationGraph(
        "chain",
        tuple(operators),
        tuple(TensorEdge(i, i + 1, size) for i in range(len(operators) - 1)),
        layers=tuple(f"layer{k}" for k in range(layers)),
        batch_size=samples,
    )


def test_chain_matches_a_calculation_by_hand() -> None:
    shape = MemoryShape.from_graph(convolutions())
    # In training, at the last ReLU's backward pass: 8 kept tensors, and the gradients of its output and input.
    assert shape.alive[0].max() == pytest.approx(10 * UNIT)
    # With two layers frozen: 4 kept, the input of the first unfrozen convolution, 2 gradients.
    assert shape.alive[2].max() == pytest.approx(7 * UNIT)
    # All frozen: a convolution's input and output; a ReLU in place takes nothing more.
    assert shape.alive[4].max() == pytest.approx(2 * UNIT)
    assert MemoryShape.from_graph(convolutions(), False).alive[0].max() == pytest.approx(14 * UNIT)


def test_winograd_needs_enough_channels() -> None:
    shape = MemoryShape.from_graph(convolutions())
    none, some = (shape.activation_bytes(np.array([4]), np.array([10.0]), c)[0] for c in (256, 128))
    assert none == pytest.approx(20 * UNIT)
    # 36 numbers for each 16 in both tensors, and in the weights for each 9.
    assert some == pytest.approx(10 * (2 + 2 * 36 / 16) * UNIT + 36 * 128**2 * 4)


def test_kept_frozen_output_counts() -> None:
    chain = convolutions()
    each = np.array([op.saved_activation_bytes for op in chain.operators])
    assert border_bytes(chain, each).tolist() == [0, *[8 * UNIT] * 3, 0]


def test_memory_model_recovers_itself_and_falls_with_the_prefix() -> None:
    shapes = [MemoryShape.from_graph(convolutions(n, channels=c)) for n, c in ((4, 128), (5, 256), (6, 64))]
    shapes.append(MemoryShape.from_graph(graph(8)))
    real = MemoryModel(CENTRE * np.array([1.2, 1.3, 1.1, 1.0]), 128.0)
    k, b = (v.ravel() for v in np.meshgrid(np.arange(4), [1, 4, 32, 256, 1024]))
    measured = [(s, k, b, real.bytes(s, k, b)) for s in shapes[:3]]
    fitted = MemoryModel.fit(measured)
    assert fitted.winograd_channels == 128.0
    wanted = real.bytes(shapes[3], k, b)
    assert np.abs(fitted.bytes(shapes[3], k, b) / wanted - 1).mean() < 0.05
    for shape in shapes:
        layers = len(shape.unfrozen_parameters)
        assert np.all(np.diff(real.bytes(shape, np.arange(layers), 256)) <= 0)
    with pytest.raises(InputError, match="nothing to fit"):
        MemoryModel.fit([])
