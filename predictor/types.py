"""Types of predictions: for people (`Prediction`) and for policies (`PredictionArrays`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from profiling.workload import ColocationSet

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
LEVEL_90 = 1.645
"""Standard deviations of a normal distribution from the middle of its 90 % interval to either end."""


# msgspec structs are created several times as fast as frozen dataclasses, and an answer has dozens of them.
class Quantity(Struct, frozen=True, gc=False):
    """A value with its 90 % interval, in the unit given by the field's name."""

    value: float
    lower: float
    upper: float

    @classmethod
    def around(cls, value: float, factor: float) -> Quantity:
        """A value that may be off by a factor, at least 1, either way."""
        return cls(value, value / factor, value * factor)

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "lower": self.lower, "upper": self.upper}

    def inverse(self) -> Quantity:
        """Its reciprocal, such as the throughput ratio of a slowdown."""
        return Quantity(1 / self.value, 1 / self.upper, 1 / self.lower)

    def at_least(self, least: float) -> Quantity:
        """The same with a lower end of at least `least`, or of the value if that is smaller."""
        return Quantity(self.value, max(self.lower, min(least, self.value)), self.upper)


class MemberPrediction(Struct, frozen=True, gc=False):
    """One job of a co-location set.

    Attributes:
        job: its SPEC.
        solo_step_time_s, step_time_s: seconds per step alone and in the set.
        slowdown: step time / solo step time, at least 1.
        throughput_ratio: its inverse.
        memory_bytes: device memory of the process, context included.
        utilization_ratio: the job's share of the device's time, 0 to 1.
        in_domain: whether the job resembles those in training.
    """

    job: str
    solo_step_time_s: Quantity
    step_time_s: Quantity
    slowdown: Quantity
    throughput_ratio: Quantity
    memory_bytes: Quantity
    utilization_ratio: Quantity
    in_domain: bool


QUANTITIES = (
    "solo_step_time_s",
    "step_time_s",
    "slowdown",
    "throughput_ratio",
    "memory_bytes",
    "utilization_ratio",
)
"""Fields of `MemberPrediction` with a value and an interval."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """How a co-location set runs, with intervals and reasons.

    Attributes:
        never_measured: aspects of the query that no training set had: device, sharing mode, precision, mode,
            framework.
    """

    device: str
    sharing: str
    model_version: str
    members: tuple[MemberPrediction, ...]
    total_memory_bytes: Quantity
    total_utilization_ratio: Quantity
    fits: bool
    reasons: tuple[str, ...]
    never_measured: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `cotenant predict --json` and `POST /v1/predict`."""
        return {
            "device": self.device,
            "sharing": self.sharing,
            "model_version": self.model_version,
            "members": [
                {
                    "job": m.job,
                    **{name: getattr(m, name).to_json() for name in QUANTITIES},
                    "in_domain": m.in_domain,
                }
                for m in self.members
            ],
            "total_memory_bytes": self.total_memory_bytes.to_json(),
            "total_utilization_ratio": self.total_utilization_ratio.to_json(),
            "fits": self.fits,
            "reasons": list(self.reasons),
            "never_measured": list(self.never_measured),
        }


@dataclass(frozen=True, slots=True)
class PredictionArrays:
    """Predictions of S sets with up to M members each, as policies use them.

    Attributes:
        mask: [S, M] True where there is a member; members keep the order of their set.
        solo_step_time_s, step_time_s, slowdown: [S, M]; 1.0 where masked.
        memory_bytes: [S, M]; 0.0 where masked.
        utilization_ratio: [S, M] co-located share; 0.0 where masked.
        memory_upper_bytes: [S] upper bound of the set's total memory.
        fits: [S] whether that bound is within the device's memory. Of a set that was predicted to fit and ran out of
            memory the bound is that memory.
    """

    mask: Bools
    solo_step_time_s: Floats
    step_time_s: Floats
    slowdown: Floats
    memory_bytes: Floats
    utilization_ratio: Floats
    memory_upper_bytes: Floats
    fits: Bools


class SetPredictor(Protocol):
    """Interface that policies need: a predictor, a table of measurements (ground truth) or a test double."""

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """Predict all `sets` in one call.

        Raises:
            UnknownNameError: unknown device or model.
        """
        ...
