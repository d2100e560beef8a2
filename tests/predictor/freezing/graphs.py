"""Small graphs for the tests of the layer models."""

from __future__ import annotations

import numpy as np

from profiling.graph import ComputationGraph, Operator


def graph(layers: int = 6, batch_size: int = 32, seed: int = 0, kernels: float = 3.0) -> ComputationGraph:
    generator = np.random.default_rng(seed)
    operators = []
    for layer in range(layers):
        flops, moved, held = generator.uniform(0.1, 1.0, 3)
        operators.append(
            Operator(
                f"linear{layer}",
                "linear",
                flops * 2e9,
                flops * 4e9,
                moved * 1e8,
                moved * 1e7,
                moved * 2e8,
                held * 4e7,
                moved * 1e7,
                (batch_size, 64),
                layer_index=layer,
                kernel_count=kernels,
            )
        )
        operators.append(
            Operator(f"relu{layer}", "relu", 0, 0, 1e6, 1e6, 2e6, 0, 1e6, (batch_size, 64), kernel_count=2)
        )
    held_bytes = sum(op.parameter_bytes for op in operators)
    return ComputationGraph(
        "synthetic",
        tuple(operators),
        layers=tuple(f"layer{k}" for k in range(layers)),
        batch_size=batch_size,
        parameter_count=int(held_bytes / 4),
        parameter_bytes=held_bytes,
        gradient_bytes=held_bytes,
        optimizer_state_bytes=held_bytes,
        optimizer_bytes=5 * held_bytes,
        optimizer_kernels=4.0,
        activation_bytes=sum(op.saved_activation_bytes for op in operators),
    )
