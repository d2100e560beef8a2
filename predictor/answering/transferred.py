"""What was measured of a job alone on a whole card, carried over to a slice of it or to an SM share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from predictor.fitted.intervals import SLICE_LOG_ERROR
from predictor.types import Prediction, Quantity
from profiling.workload import STEP_TIMES_S, SoloProfile, Workload

if TYPE_CHECKING:
    from predictor.examples.featurizer import Featurizer

_LEAST_S, _MOST_S = STEP_TIMES_S
# (job as measured on the card, device, SM share) → the job as it would be measured there.
Transfer = Callable[[Workload, str, float], Workload]


def transferred(
    workload: Workload, card: str, device: str, sm_share_ratio: float, featurizer: Featurizer
) -> Workload:
    """The job as it would be measured on `device` under a share, from its measurements on `card`.

    The time in which the device is busy grows by the cost model's ratio, the rest of the step and the
    memory stay, and so does the traffic; the bandwidth ratio is dropped where the bandwidth is another. If only
    the utilisation was measured, the step is the cost model's.

    Args:
        workload: its solo measurements were made on `card`, under its own `sm_share_ratio`.
        card: the whole device.
        device: `card` or a slice of it.
        sm_share_ratio: there.
        featurizer: costs jobs.
    """
    there, solo = replace(workload, sm_share_ratio=sm_share_ratio), workload.solo
    is_measured = solo.step_time_s is not None or solo.utilization_ratio is not None
    if not is_measured or (device, sm_share_ratio) == (card, workload.sm_share_ratio):
        return there
    before = featurizer.job(workload.without_solo(), card).cost
    after = featurizer.job(there.without_solo(), device).cost
    step_s = before.step_time_s if solo.step_time_s is None else solo.step_time_s
    busy = min(before.busy_s / step_s, 1.0) if solo.utilization_ratio is None else solo.utilization_ratio
    ratio = after.busy_s / before.busy_s if before.busy_s > 0 else 1.0
    stretched = 1.0 - busy + busy * ratio
    bandwidth = solo.memory_bandwidth_ratio if device == card else None
    return replace(
        there,
        solo=SoloProfile(
            min(max(step_s * stretched, _LEAST_S), _MOST_S),
            solo.memory_bytes,
            None if solo.utilization_ratio is None else min(busy * ratio / stretched, 1.0),
            None if bandwidth is None else min(bandwidth / stretched, 1.0),
        ),
    )


def transfer_from(predictor: Any, card: str) -> Transfer | None:
    """`transferred` from `card` with a predictor's own costs; None for one without (a table, a test double).

    What a posterior observed of a job alone in the very place is not carried over.
    """
    posterior = None
    while not hasattr(predictor, "fitted_"):
        posterior = predictor if hasattr(predictor, "told") else posterior
        predictor = getattr(predictor, "predictor", None)
        if predictor is None:
            return None
    featurizer = predictor.fitted_.model.featurizer

    def transfer(workload: Workload, device: str, sm_share_ratio: float) -> Workload:
        there = transferred(workload, card, device, sm_share_ratio, featurizer)
        if posterior is None or (device, sm_share_ratio) == (card, workload.sm_share_ratio):
            return there
        seen = observed_alone(posterior, there, device)
        known = {f.name: value for f in fields(seen) if (value := getattr(seen, f.name)) is not None}
        return replace(there, solo=replace(there.solo, **known)) if known else there

    return transfer


def observed_alone(posterior: Any, workload: Workload, device: str) -> SoloProfile:
    """What a `Posterior` observed of a job alone on a device, under the job's share, whatever its SPEC states."""
    told: Workload = posterior.told(device, "time-slice", workload.without_solo())
    return told.solo


def as_uncertain(prediction: Prediction, card: str, alone: Sequence[Quantity | None]) -> Prediction:
    """A prediction of jobs whose measurements were carried over from `card`.

    Intervals of step times are at least as wide as those of the jobs alone on the card and, on a slice, as the errors
    of steps on slices.

    Args:
        alone: step time of each member alone on the card; None for one that was measured in this very place.
    """
    slice_log_error = 0.0 if prediction.device == card else SLICE_LOG_ERROR

    def wider(step: Quantity, before: Quantity) -> Quantity:
        fewer, more = before.value / before.lower, before.upper / before.value
        fewer, more = (math.exp(math.hypot(slice_log_error, math.log(apart))) for apart in (fewer, more))
        return Quantity(step.value, min(step.lower, step.value / fewer), max(step.upper, step.value * more))

    members = (
        m if before is None else structs.replace(m, step_time_s=wider(m.step_time_s, before))
        for m, before in zip(prediction.members, alone, strict=True)
    )
    return replace(prediction, members=tuple(members))
