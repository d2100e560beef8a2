"""A `SetProcess` as arrays and JSON, for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.known_members import NamedMembers
from predictor.gaussian_process.members import MEMBER_WIDTH, MemberScale
from predictor.gaussian_process.pair_table import PairWeights
from predictor.gaussian_process.set_process import SetProcess
from profiling.workload import Workload

if TYPE_CHECKING:
    from predictor.examples.featurizer import Featurizer


def to_arrays(process: SetProcess) -> dict[str, NDArray[Any]]:
    """What `from_arrays` needs, by name."""
    members, weights = process.seen.members, process.weights
    return {
        "place": members.place,
        "numbers": np.stack([members.model, members.job, members.setting]),
        "weight": weights.weight,
        "private": np.array(weights.private, dtype=np.float64).reshape(-1, 3),
        "mean": process.scale.mean,
        "deviation": process.scale.deviation,
    }


def to_json(process: SetProcess) -> dict[str, Any]:
    """Constants, and the names that the numbers stand for."""
    seen = process.seen
    return {
        "models": list(seen.models),
        "jobs": [str(job) for job in seen.jobs],
        "settings": [list(setting) for setting in seen.settings],
        "parameters": process.parameters.to_json(),
        "centre": process.centre,
    }


def from_arrays(
    arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], featurizer: Featurizer
) -> SetProcess:
    """Rebuild the process given to `to_arrays` and `to_json`.

    Raises:
        KeyError, TypeError, ValueError: something is missing or does not fit together.
    """
    place, weight = arrays["place"], arrays["weight"]
    if place.shape[1:] != (MEMBER_WIDTH + 1,) or weight.shape != (len(place), len(place)):
        raise ValueError("the process's arrays do not fit together")
    for name, shape in (
        ("numbers", (3, len(place))),
        *((name, (MEMBER_WIDTH,)) for name in ("mean", "deviation")),
    ):
        if arrays[name].shape != shape:
            raise ValueError(f"the process's {name} have shape {arrays[name].shape}, not {shape}")
    members = Members(place, *arrays["numbers"])
    seen = NamedMembers(
        members,
        tuple(about["models"]),
        tuple(Workload.parse(job) for job in about["jobs"]),
        tuple((device, sharing) for device, sharing in about["settings"]),
    )
    private = tuple((int(s), int(j), float(mean)) for s, j, mean in arrays["private"].tolist())
    parameters = KernelParameters(**about["parameters"])
    weights = PairWeights(parameters, members, weight, np.arange(len(members)), private)
    scale = MemberScale(arrays["mean"], arrays["deviation"])
    return SetProcess(seen, weights, float(about["centre"]), scale, featurizer)
