"""Cost of one step of each optimiser on a GPU, in the multi-tensor implementation."""

from __future__ import annotations

FLOPS = {"sgd": 2, "momentum": 6, "adam": 12, "adamw": 14, "rmsprop": 9, "adagrad": 7, "none": 0}
"""Floating-point operations per element."""

PASSES = {"sgd": 3, "momentum": 8, "adam": 18, "adamw": 20, "rmsprop": 13, "adagrad": 11, "none": 0}
"""Number of reads and writes of a tensor of the parameters' size."""

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "rmsprop": 1, "adagrad": 1, "none": 0}
"""Number of state tensors of the parameters' size."""

TEMPORARIES = {"sgd": 0, "momentum": 1, "adam": 1, "adamw": 1, "rmsprop": 1, "adagrad": 2, "none": 0}
"""Number of tensors of the parameters' size that a step allocates and frees."""

KERNELS = {"sgd": 1, "momentum": 3, "adam": 9, "adamw": 10, "rmsprop": 6, "adagrad": 5, "none": 0}
"""Kernels per chunk of parameter tensors."""

TENSORS_PER_KERNEL = 64
"""Tensors of a list that one kernel takes."""


def launches(optimizer: str, tensors: int) -> float:
    """Number of kernels of a step that updates `tensors` parameter tensors."""
    return float(KERNELS[optimizer] * -(-tensors // TENSORS_PER_KERNEL))
