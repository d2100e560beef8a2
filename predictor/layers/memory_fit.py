"""Peak memory against the frozen prefix, calibrated on other models: what an allocator and a framework add to tensors.

A step has its peak in one of three phases: backward (kept activations and the largest gradient among them), forward
through the frozen part (what is alive there, with a convolution's workspace), or the optimiser step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from predictor.layers.profile import owning_layers
from predictor.types import Floats
from profiling.errors import InputError
from profiling.graph import ComputationGraph

# Context, bytes per parameter byte, per unfrozen parameter byte, of kept activations, of the largest unfrozen tensor,
# of what lives in a frozen forward pass; optimiser phase: per unfrozen parameter byte, per parameter byte.
CENTRE = np.array([0.5e8, 4.0, 1.0, 1.1, 1.0, 1.0, 2.5, 0.3])
WIDTH = np.array([0.5e8, 1.0, 1.0, 0.2, 1.0, 0.5, 2.0, 1.0])
PRIOR_WEIGHT = 0.3


@dataclass(frozen=True, eq=False)
class MemoryShape:
    """Sizes of one model, L layers; activations per sample.

    Attributes:
        parameters: bytes; unfrozen_parameters: [L + 1] of layers k and later.
        kept: [L + 1] activations that layers k and later keep for the backward pass.
        largest: [L + 1] largest tensor that layers k and later write.
        live: most bytes alive at once in a forward pass, with a workspace as large as a convolution's tensors.
    """

    parameters: float
    unfrozen_parameters: Floats
    kept: Floats
    largest: Floats
    live: float

    @classmethod
    def from_graph(cls, graph: ComputationGraph, inplace_activations: bool = True) -> MemoryShape:
        """Args: inplace_activations: False where activation functions keep their input as well as their output."""
        count = len(graph.layers)
        kept, largest, parameters = (np.zeros(count) for _ in range(3))
        for op, layer in zip(graph.operators, owning_layers(graph), strict=True):
            kept[layer] += op.saved_activation_bytes * op.repeat
            if op.kind == "activation" and not inplace_activations:
                kept[layer] += op.bytes_written * op.repeat
            largest[layer] = max(largest[layer], op.bytes_written)
            parameters[layer] += op.parameter_bytes * op.repeat
        per_sample = 1.0 / max(graph.batch_size, 1)
        tail = lambda v: np.append(np.cumsum(v[::-1])[::-1], 0.0)  # noqa: E731
        return cls(
            float(parameters.sum()),
            tail(parameters),
            tail(kept) * per_sample,
            np.append(np.maximum.accumulate(largest[::-1])[::-1], 0.0) * per_sample,
            _live_bytes(graph) * per_sample,
        )


@dataclass(frozen=True, eq=False)
class MemoryModel:
    """Eight coefficients, 0 or more, in the order of `CENTRE`."""

    coefficients: Floats

    def bytes(self, shape: MemoryShape, frozen_prefix: ArrayLike, batch_size: ArrayLike) -> Floats:
        """[N] peak bytes; non-increasing in the frozen prefix."""
        k: NDArray[np.int64] = np.asarray(frozen_prefix, dtype=np.int64)
        b = np.asarray(batch_size, dtype=np.float64)
        c = self.coefficients
        trained = shape.unfrozen_parameters[k]
        backward = c[2] * trained + np.maximum(
            b * (c[3] * shape.kept[k] + c[4] * shape.largest[k]), b * c[5] * shape.live
        )
        update = c[6] * trained + c[7] * shape.parameters
        return c[0] + c[1] * shape.parameters + np.maximum(backward, update)

    @classmethod
    def fit(cls, measured: Sequence[tuple[MemoryShape, ArrayLike, ArrayLike, ArrayLike]]) -> MemoryModel:
        """From (shape, frozen prefixes, batch sizes, peak bytes) of some models; robust, with a Gaussian prior.

        Raises:
            InputError: nothing was measured.
        """
        from scipy.optimize import least_squares

        if not measured:
            raise InputError("nothing to fit memory with", expected="at least one model", got="none")

        def residual(theta: Floats) -> Floats:
            model = cls(theta * WIDTH)
            errors = [
                model.bytes(shape, k, b) / np.asarray(peak, dtype=np.float64) - 1.0
                for shape, k, b, peak in measured
            ]
            return np.concatenate([*errors, PRIOR_WEIGHT * (theta - CENTRE / WIDTH)])

        found = least_squares(residual, CENTRE / WIDTH, bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.05)
        return cls(found.x * WIDTH)


def _live_bytes(graph: ComputationGraph) -> float:
    last = list(range(len(graph.operators)))
    for edge in graph.edges:
        last[edge.source] = max(last[edge.source], edge.target)
    alive: dict[int, float] = {}
    peak = 0.0
    for index, op in enumerate(graph.operators):
        alive[index] = op.bytes_written
        workspace = op.bytes_read - op.parameter_bytes + op.bytes_written if op.kind == "convolution" else 0.0
        peak = max(peak, sum(alive.values()) + workspace)
        for source in [s for s in alive if last[s] <= index]:
            del alive[source]
    return peak
