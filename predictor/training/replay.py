"""What a predictor keeps of the sets that it was made of, so that it can learn more without forgetting them.

Inputs only, as the network reads them: no measured co-location. When it learns from new sets, its own earlier answers to
these are what it must keep to (learning without forgetting, Li and Hoiem, ECCV 2016).
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from models.colocation_network import SetTensors
from predictor.examples.examples import Examples
from predictor.fitted.model import CotenantModel

# Sets that are kept, each with and without its members' solo measurements.
KEPT_SETS = 200


def remember(model: CotenantModel, examples: Examples, seed: int = 0, sets: int = KEPT_SETS) -> SetTensors:
    """Some of the sets, drawn at random, with and without solo measurements."""
    drawn = np.random.default_rng(seed).permutation(len(examples.set_ids))[:sets]
    some = examples.subset([examples.set_ids[i] for i in drawn])
    return together(model.inputs(some), model.inputs(some.without_solo()))


def together(one: SetTensors, other: SetTensors) -> SetTensors:
    """Both, side by side."""
    shifts = {"edge_index": len(one.member), "set_index": int(one.set_index.max()) + 1}
    return SetTensors(
        **{
            f.name: torch.cat(
                [getattr(one, f.name), getattr(other, f.name) + shifts.get(f.name, 0)],
                int(f.name == "edge_index"),
            )
            for f in fields(SetTensors)
        }
    )


def with_more_campaigns(sets: SetTensors, more: int) -> SetTensors:
    """The same sets for a network that knows `more` campaigns besides; the last column stays that of the unknown."""
    setting = sets.setting
    room = setting.new_zeros(len(setting), more)
    return replace(sets, setting=torch.cat([setting[:, :-1], room, setting[:, -1:]], 1))


def to_tensors(sets: SetTensors) -> dict[str, Tensor]:
    """By name, for a file."""
    return {f"memory.{f.name}": getattr(sets, f.name) for f in fields(SetTensors)}


def from_tensors(tensors: dict[str, Tensor]) -> SetTensors | None:
    """What `to_tensors` gave; None where the file is of a time before there was a memory."""
    names = [f.name for f in fields(SetTensors)]
    if "memory.member" not in tensors:
        return None
    return SetTensors(**{name: tensors[f"memory.{name}"] for name in names})
