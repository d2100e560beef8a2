"""The analytic form of a step with a frozen prefix: columns non-increasing in k, with non-negative weights.

Hence every fitted step time is non-increasing in the frozen prefix, whatever the data. Two of the columns are
a roofline per layer: a layer costs the larger of a floor (kernel launches, optimiser bookkeeping) and its
work, which is b times a mix of its FLOPs and its activations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.layer_fits.profile import LayerProfile
from predictor.types import Floats

COLUMNS = ("constant", "unfrozen_layers", "unfrozen_parameters", "forward_roof", "backward_roof")


@dataclass(frozen=True, slots=True)
class Roof:
    """The two non-linear parameters of the form.

    Attributes:
        floor_samples: batch size below which a layer of mean cost does not get any faster.
        activation_mix: 0 weights layers by FLOPs, 1 by activations.
    """

    floor_samples: float
    activation_mix: float


def columns(
    profile: LayerProfile, frozen_prefix: NDArray[np.int64], batch_size: Floats, roof: Roof
) -> Floats:
    """[N, 5] columns for N pairs of frozen prefix and batch size per GPU."""
    k = np.asarray(frozen_prefix, dtype=np.int64)
    b = np.asarray(batch_size, dtype=np.float64)
    cost = layer_cost(profile, b, roof)
    tail = np.concatenate([np.cumsum(cost[:, ::-1], axis=1)[:, ::-1], np.zeros((len(b), 1))], axis=1)
    return np.stack(
        [
            np.ones_like(b),
            1.0 - k / profile.layers,
            profile.parameter_share[k],
            tail[:, 0],
            tail[np.arange(len(b)), k],
        ],
        axis=1,
    )


def layer_cost(profile: LayerProfile, batch_size: Floats, roof: Roof) -> Floats:
    """[N, L] relative cost of each layer's pass over a batch: its floor or its work, in samples."""
    flops = profile.flops / max(profile.flops.sum(), 1e-300)
    activations = profile.activation_bytes / max(profile.activation_bytes.sum(), 1e-300)
    work = (1.0 - roof.activation_mix) * flops + roof.activation_mix * activations
    return np.maximum(roof.floor_samples / profile.layers, batch_size[:, None] * work[None, :])
