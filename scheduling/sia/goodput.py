"""Goodput: throughput times statistical efficiency, and the batch that maximises it (Pollux, section 3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from predictor.types import Floats
from scheduling.core.set_cache import Ints
from scheduling.sia.throughput import ThroughputParams, step_s


class BatchLimits(NamedTuple):
    """Batch sizes of an application on one GPU type: totals, and samples per GPU and pass."""

    initial: int
    largest: int
    local_least: int
    local_largest: int


class Best(NamedTuple):
    """[C] best goodput (samples per second times efficiency), samples per GPU and pass, further passes."""

    goodput: Floats
    local_batch: Ints
    accumulation: Ints


def efficiency(batch: Any, initial: int, sqr: float, var: float) -> Any:
    """Progress per sample relative to the initial batch: gain / scale."""
    scale = batch / initial
    return step_gain(scale, sqr, var) / scale


def step_gain(scale: Any, sqr: float, var: float) -> Any:
    """Progress of a step with `scale` times the initial batch, in steps of the initial batch.

    It follows from the gradient's squared norm `sqr` and variance `var`; 1 if both are 0.
    """
    below = var / scale + sqr
    return np.where(below > 0, (var + sqr) / np.where(below > 0, below, 1.0), 1.0)


def best_batch(
    params: ThroughputParams,
    sqr: float,
    var: float,
    limits: BatchLimits,
    nodes: Any,
    replicas: Any,
    fixed: int | None = None,
) -> Best:
    """Search 50 totals on a geometric grid (or one `fixed` total) for each of C configurations.

    Args:
        params: throughput model.
        sqr, var: squared norm and variance of the gradient.
        limits: batch sizes.
        nodes, replicas: [C].
        fixed: the only total to consider.
    """
    nodes = np.atleast_1d(np.asarray(nodes, float))
    replicas = np.atleast_1d(np.asarray(replicas, float))
    if fixed is None:
        least = np.minimum(np.maximum(limits.initial, limits.local_least * replicas), limits.largest)
        total = np.geomspace(least, limits.largest, 50)
    else:
        total = np.full((1, len(replicas)), float(fixed))
    local = total / replicas
    passes = np.ceil(local / limits.local_largest - 1e-8) - 1
    # A single small batch gives no variance of the gradient, so a single GPU accumulates at least once.
    passes = np.where(
        (replicas == 1) & (local > limits.initial + 1e-8), np.maximum(passes, 1), passes
    ).astype(int)
    batch = np.ceil(local / (passes + 1) - 1e-8).astype(int)
    total = replicas * batch * (passes + 1)
    value = (
        total / step_s(params, nodes, replicas, batch, passes) * efficiency(total, limits.initial, sqr, var)
    )
    value = np.where((batch >= limits.local_least) & (batch <= limits.local_largest), value, 0.0)
    best = value.argmax(axis=0), np.arange(len(replicas))
    return Best(value[best], batch[best], passes[best])
