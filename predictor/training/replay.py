"""What a predictor keeps of its training sets, so that it can learn more without forgetting them.

Only inputs are kept, as the network reads them, and no measured co-location. When it learns from new sets,
its own earlier answers to these are additional targets (learning without forgetting, Li and Hoiem, ECCV
2016).
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from models.colocation_network import SetTensors
from predictor.examples.examples import Examples
from predictor.fitted.model import CotenantModel

# Number of sets kept, each with and without its members' solo measurements.
KEPT_SETS = 200


def remember(model: CotenantModel, examples: Examples, seed: int = 0, sets: int = KEPT_SETS) -> SetTensors:
    """A random sample of the sets, with and without solo measurements."""
    drawn = np.random.default_rng(seed).permutation(len(examples.set_ids))[:sets]
    some = examples.subset([examples.set_ids[i] for i in drawn])
    return together(model.inputs(some), model.inputs(some.without_solo()))


def together(first: SetTensors, second: SetTensors) -> SetTensors:
    """Join both groups of sets; the smaller are padded to the size of the larger."""
    size = max(first.present.shape[1], second.present.shape[1])
    wide = [padded_to(sets, size) for sets in (first, second)]
    return SetTensors(*(torch.cat([getattr(sets, f.name) for sets in wide]) for f in fields(SetTensors)))


def padded_to(sets: SetTensors, size: int) -> SetTensors:
    """Pad the sets to `size` members."""
    more = size - sets.present.shape[1]
    if not more:
        return sets

    def pad(values: Tensor) -> Tensor:
        return torch.cat([values, values.new_zeros(len(values), more, *values.shape[2:])], 1)

    return replace(sets, member=pad(sets.member), demand=pad(sets.demand), present=pad(sets.present))


def with_more_campaigns(sets: SetTensors, more: int) -> SetTensors:
    """The same sets for a network with `more` additional campaigns.

    The last column remains the unknown one.
    """
    setting = sets.setting
    room = setting.new_zeros(len(setting), more)
    return replace(sets, setting=torch.cat([setting[:, :-1], room, setting[:, -1:]], 1))


def to_tensors(sets: SetTensors) -> dict[str, Tensor]:
    """Tensors by name, for a file."""
    return {f"replay.{f.name}": getattr(sets, f.name) for f in fields(SetTensors)}


def from_tensors(tensors: dict[str, Tensor]) -> SetTensors | None:
    """Rebuild the argument of `to_tensors`; None if the file has none."""
    names = [f.name for f in fields(SetTensors)]
    if "replay.demand" not in tensors:
        return None
    return SetTensors(**{name: tensors[f"replay.{name}"] for name in names})
