"""Derives graphs with other options from a captured graph, without capturing again."""

from __future__ import annotations

from dataclasses import replace

from profiling.capture.optimizers import FLOPS, KERNELS, PASSES, STATES
from profiling.errors import InputError
from profiling.graph import ComputationGraph


def with_optimizer(graph: ComputationGraph, optimizer: str) -> ComputationGraph:
    """The same step with another optimiser; its state, FLOPs, bytes and kernels are scaled from the present one's.

    Raises:
        InputError: the graph has no optimiser to start from.
    """
    before = str(graph.options.get("optimizer") or "sgd")
    if optimizer == before:
        return graph
    if before == "none":
        raise InputError(
            f"{graph.name} was captured without an optimiser",
            expected="optimizer none",
            got=optimizer,
            hint="capture the model again with an optimiser",
        )
    accumulation = _accumulation_bytes(graph)
    updated_bytes = (graph.optimizer_bytes - accumulation) / PASSES[before]
    # State is created with the first gradient; Adagrad creates it in its constructor.
    held = updated_bytes if optimizer == "adagrad" else graph.gradient_bytes
    return replace(
        graph,
        optimizer_flops=graph.optimizer_flops / FLOPS[before] * FLOPS[optimizer],
        optimizer_bytes=updated_bytes * PASSES[optimizer] + accumulation,
        optimizer_kernels=graph.optimizer_kernels / KERNELS[before] * KERNELS[optimizer],
        optimizer_state_bytes=STATES[optimizer] * held,
        options={**graph.options, "optimizer": optimizer},
    )


def with_accumulation(graph: ComputationGraph, passes: int) -> ComputationGraph:
    """The same step with `passes` forward and backward passes per optimiser step."""
    before = graph.passes
    if passes == before:
        return graph
    return replace(
        graph,
        operators=tuple(replace(op, repeat=op.repeat // before * passes) for op in graph.operators),
        optimizer_bytes=graph.optimizer_bytes
        - _accumulation_bytes(graph)
        + (passes - 1) * 3 * graph.gradient_bytes,
        host_input_bytes=graph.host_input_bytes / before * passes,
        options={**graph.options, "gradient_accumulation": passes},
    )


def _accumulation_bytes(graph: ComputationGraph) -> float:
    """Traffic of gradient accumulation: each further backward pass reads twice and writes once."""
    return (graph.passes - 1) * 3 * graph.gradient_bytes
