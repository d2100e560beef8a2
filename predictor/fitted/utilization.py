"""Utilisation of a device by all members of a set: that of independent phases plus a learned correction.

The network learns the difference where the utilisation of a set and of each member alone was measured;
elsewhere it adds nothing. Errors in estimated utilisation would only disturb what it learns about slowdown.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.colocation_network import SetOutput
from models.features import Floats
from predictor.examples.examples import Examples
from predictor.fitted.model import CotenantModel
from profiling.devices import get_device


def independent_ratio(model: CotenantModel, examples: Examples) -> Floats:
    """[S] utilisation if the members' phases were independent.

    It uses solo utilisation, measured or estimated.
    """
    variants, where = model.variants(examples.workloads, examples.devices)
    idle = np.ones(len(examples.set_ids))
    np.multiply.at(idle, examples.set_index, 1.0 - variants.demand[where, 0])
    return np.asarray(1.0 - idle)


def members_measured(examples: Examples) -> NDArray[np.bool_]:
    """[S] whether the solo utilisation of every member is known.

    On a CPU it is not, because utilisation there says nothing about sharing.
    """
    measured = np.ones(len(examples.set_ids), dtype=bool)
    for index, workload, device in zip(examples.set_index, examples.workloads, examples.devices, strict=True):
        measured[index] &= workload.solo.utilization_ratio is not None and not get_device(device).is_cpu
    return measured


def measured_difference(model: CotenantModel, examples: Examples) -> Tensor:
    """[S] measured utilisation minus that of independent phases.

    NaN if not measured, or not for all members.
    """
    beyond = examples.set_utilization_ratio - independent_ratio(model, examples)
    counts = examples.resident & members_measured(examples)
    return torch.tensor(np.where(counts, beyond, np.nan), dtype=torch.float32)


def predicted_ratio(model: CotenantModel, examples: Examples) -> Floats:
    """[S] utilisation by all members together."""
    inputs = model.inputs(examples)
    with torch.no_grad():
        parts = torch.stack([network.eval()(inputs).utilization for network in model.networks]).mean(0)
    difference = set_means(parts, inputs.present).numpy().astype(np.float64)
    difference *= members_measured(examples)
    return np.clip(independent_ratio(model, examples) + difference, 0.0, 1.0)


def utilization_loss(output: SetOutput, present: Tensor, difference: Tensor, beta: float) -> Tensor:
    """Huber loss of the difference [S]; 0 where not measured. `present` [S, M] marks existing members."""
    known = ~torch.isnan(difference)
    if not bool(known.any()):
        return difference.new_zeros(())
    error = (set_means(output.utilization, present) - difference)[known]
    return nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=beta)


def set_means(values: Tensor, present: Tensor) -> Tensor:
    """[S] mean over the members that are present, of [S, M]."""
    weight = present.to(values.dtype)
    return (values * weight).sum(1) / weight.sum(1).clamp_min(1.0)
