"""Peak memory by frozen prefix, calibrated on other models: what allocator and framework add to the tensors.

The size of the tensors comes from the graph alone (`MemoryShape`). Fitted are the number of copies of the
parameters (weights, momentum, buckets, statistics) while activations are alive and in the optimiser's step,
and the number of channels from which convolutions have a Winograd workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.layer_fits.memory_shape import MemoryShape
from predictor.types import Floats
from profiling.errors import InputError

# Bytes per parameter byte and per unfrozen parameter byte, first while activations are alive, then in the
# optimiser's
# step.
CENTRE = np.array([4.0, 1.0, 4.0, 2.5])
WINOGRAD_CHANNELS = (float("inf"), 256.0, 128.0, 64.0)


@dataclass(frozen=True, eq=False)
class MemoryModel:
    """Four non-negative coefficients in the order of `CENTRE`, and the number of channels from which Winograd
    is used."""

    coefficients: Floats
    winograd_channels: float = float("inf")

    def bytes(self, shape: MemoryShape, frozen_prefix: ArrayLike, batch_size: ArrayLike) -> Floats:
        """[N] peak bytes."""
        k, b = np.broadcast_arrays(
            np.atleast_1d(np.asarray(frozen_prefix, dtype=np.int64)),
            np.asarray(batch_size, dtype=np.float64),
        )
        c, trained = self.coefficients, shape.unfrozen_parameters[k]
        step = shape.activation_bytes(k, b, self.winograd_channels) + c[0] * shape.parameters + c[1] * trained
        return np.maximum(step, c[2] * shape.parameters + c[3] * trained)

    @classmethod
    def fit(cls, measured: Sequence[tuple[MemoryShape, ArrayLike, ArrayLike, ArrayLike]]) -> MemoryModel:
        """Fit robustly on relative errors to (shape, frozen prefixes, batch sizes, peak bytes) of some
        models.

        A coefficient that no row determines (the optimiser's, if activations always dominate) stays at
        `CENTRE`.

        Raises:
            InputError: no measurements.
        """
        from scipy.optimize import least_squares

        if not measured:
            raise InputError("nothing to fit memory with", expected="at least one model", got="none")
        fits = []
        for channels in WINOGRAD_CHANNELS:

            def residual(theta: Floats, channels: float = channels) -> Floats:
                model = cls(theta, channels)
                return np.concatenate(
                    [model.bytes(s, k, b) / np.asarray(peak, float) - 1.0 for s, k, b, peak in measured]
                )

            fitted = least_squares(residual, CENTRE, bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.05)
            fits.append((float(fitted.cost), cls(fitted.x, channels)))
        return min(fits, key=lambda item: item[0])[1]
