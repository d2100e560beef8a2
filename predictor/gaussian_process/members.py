"""Features of a member, as its position in the kernel's space."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.features import (
    PACE_FEATURES,
    RESOURCES,
    SOLO_FEATURES,
    WORKLOAD_FEATURES,
    Floats,
    capacity_ratio,
    demand_ratios,
    occupancy,
    pace_of,
    solo_features,
)
from predictor.gaussian_process.kernel import KernelParameters
from profiling.files import read_json
from profiling.workload import Workload

if TYPE_CHECKING:
    from predictor.examples.featurizer import Featurizer

_SOLO = tuple(name for name in SOLO_FEATURES if not name.startswith("has_"))
# Group to features; each group has a weight in the kernel.
MEMBER_GROUPS = {
    "solo": _SOLO,
    "pace": PACE_FEATURES,
    "want": (*RESOURCES, "capacity", "occupancy"),
    "graph": WORKLOAD_FEATURES,
}
MEMBER_FEATURES = tuple(name for names in MEMBER_GROUPS.values() for name in names)
MEMBER_WIDTH = len(MEMBER_FEATURES)
_SOLO_COLUMNS = [SOLO_FEATURES.index(name) for name in _SOLO]
# For each solo feature, the column of the flag that says whether it was measured; if not, the feature is NaN.
_FLAGS = [
    max(k for k, flag in enumerate(SOLO_FEATURES[: column + 1]) if flag.startswith("has_"))
    for column in _SOLO_COLUMNS
]
# Smallest occupancy, so that partners that do nothing still have a mean.
_LEAST_OCCUPANCY = 1e-3
# Features are clamped to this many standard deviations.
_FARTHEST = 4.0


def member_features(
    workload: Workload, device: str, solo_step_time_s: float, featurizer: Featurizer
) -> Floats:
    """[MEMBER_WIDTH] features of one job on one device; NaN where not measured.

    Args:
        workload: the job, with its solo measurements.
        device: name of the device.
        solo_step_time_s: predicted; used if no solo step time was measured.
        featurizer: reads the job's graph.

    Raises:
        UnknownNameError: unknown model or device.
    """
    job = featurizer.job(workload, device)
    step = workload.solo.step_time_s or solo_step_time_s
    full = replace(job.workload, solo=replace(workload.solo, step_time_s=step))
    values = solo_features(full, job.device, job.demand)
    solo = np.where(values[_FLAGS] > 0, values[_SOLO_COLUMNS], np.nan)
    known = replace(full, solo=workload.solo)
    return np.concatenate(
        [
            solo,
            pace_of(job.demand, step, job.graph),
            demand_ratios(job.demand, step, known),
            [capacity_ratio(job.demand, known, job.device), occupancy(known, job.device)],
            job.features,
        ]
    )


def occupancies(features: Floats) -> Floats:
    """[V] share of the time for which members keep the device from others; 1 where the features are unknown."""
    values = features[:, MEMBER_FEATURES.index("occupancy")]
    return np.where(np.isnan(values), 1.0, np.maximum(values, _LEAST_OCCUPANCY))


@dataclass(frozen=True)
class MemberScale:
    """Mean and standard deviation of member features.

    A feature that never varied is ignored (infinite deviation).

    Attributes:
        mean, deviation: [MEMBER_WIDTH].
    """

    mean: Floats
    deviation: Floats

    @classmethod
    def fit(cls, features: Floats) -> MemberScale:
        """Computed from the distinct members of measured sets [V, MEMBER_WIDTH]."""
        known = ~np.isnan(features)
        count = np.maximum(known.sum(0), 1)
        mean = np.where(known, features, 0.0).sum(0) / count
        deviation = np.sqrt(np.where(known, (features - mean) ** 2, 0.0).sum(0) / count)
        return cls(mean, np.where(deviation > 1e-6, deviation, np.inf))

    def standard(self, features: Floats) -> dict[str, Floats]:
        """Map each group to its [V, F] standardised features.

        They are scaled so that squared distances are means over the features of a group.
        """
        scaled = np.clip((features - self.mean) / self.deviation, -_FARTHEST, _FARTHEST)
        scaled = np.nan_to_num(scaled, nan=0.0)
        groups, start = {}, 0
        for name, names in MEMBER_GROUPS.items():
            own = slice(start, start + len(names))
            varied = max(1, int(np.isfinite(self.deviation[own]).sum()))
            groups[name] = scaled[:, own] / np.sqrt(varied)
            start += len(names)
        return groups

    def place(self, features: Floats, parameters: KernelParameters) -> Floats:
        """[V, MEMBER_WIDTH] for `Members.place`."""
        return np.concatenate(
            [
                np.sqrt(getattr(parameters, f"weight_{name}")) * values
                for name, values in self.standard(features).items()
            ],
            1,
        )

    def features(self, place: Floats, parameters: KernelParameters) -> Floats:
        """[V, MEMBER_WIDTH] features that have this `place`; NaN for those that never varied.

        Unknown features become the mean, and outlying ones the farthest that count.
        """
        result, start = np.full((len(place), MEMBER_WIDTH), np.nan), 0
        for name, names in MEMBER_GROUPS.items():
            own = start + np.flatnonzero(np.isfinite(self.deviation[start : start + len(names)]))
            scaled = place[:, own] * np.sqrt(max(1, len(own)) / getattr(parameters, f"weight_{name}"))
            result[:, own] = scaled * self.deviation[own] + self.mean[own]
            start += len(names)
        return result


@cache
def default_scale() -> MemberScale:
    """Scale of the jobs measured by Gavel, on which the kernel measures how alike two jobs are.

    Written by `python -m benchmarks.member_scale` for features of an earlier cost model, and kept: on the scale of
    today's features, errors are the same after random sets and larger after chosen ones (docs/benchmarks.md).
    """
    values = read_json(Path(__file__).parent / "member_scale.json")
    mean, deviation = (
        np.array([np.nan if v is None else v for v in values[name]], dtype=np.float64)
        for name in ("mean", "deviation")
    )
    return MemberScale(np.nan_to_num(mean), np.where(np.isnan(deviation), np.inf, deviation))
