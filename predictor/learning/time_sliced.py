"""Corrected answers under MPS where nobody measured it: at most those of the same jobs time-sliced, as the predictor's own are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.features import Floats
from predictor.types import MemberPrediction, PredictionArrays, Quantity


def bounded(devices: Sequence[str], predictor: Any, observed: frozenset[str]) -> list[int]:
    """Numbers of those of some devices where MPS was neither measured for the predictor nor `observed`; "" is none."""
    if not any(devices) or not hasattr(predictor, "table_"):
        return []
    never = {d for d in set(devices) - observed if d and predictor.table_.is_bounded(d, "mps")}
    return [k for k, device in enumerate(devices) if device in never]


def no_slower(arrays: PredictionArrays, places: Sequence[int], slowdown: Floats) -> PredictionArrays:
    """Answers of which those at `places` [P] have at most that slowdown [P, K]."""
    most = np.full((len(arrays.slowdown), arrays.slowdown.shape[1]), np.inf)
    most[places, : slowdown.shape[1]] = slowdown
    bounded = np.minimum(arrays.slowdown, most)
    # The device's work for a job is the same; a quicker step has it in less time.
    busy = np.minimum(arrays.utilization_ratio * (arrays.slowdown / bounded), 1.0)
    step = arrays.solo_step_time_s * bounded
    return replace(arrays, slowdown=bounded, step_time_s=step, utilization_ratio=busy)


def members_no_slower(
    members: Sequence[MemberPrediction], slowdown: Sequence[float]
) -> tuple[MemberPrediction, ...]:
    """The same for members of one set; intervals keep their width."""
    return tuple(map(_no_slower, members, slowdown))


def _no_slower(member: MemberPrediction, slowdown: float) -> MemberPrediction:
    factor = slowdown / member.slowdown.value
    if factor >= 1.0:
        return member
    slow, step, busy = member.slowdown, member.step_time_s, member.utilization_ratio
    slow = Quantity(slow.value * factor, max(slow.lower * factor, 1.0), slow.upper * factor)
    return replace(
        member,
        slowdown=slow,
        step_time_s=Quantity(step.value * factor, step.lower * factor, step.upper * factor),
        throughput_ratio=Quantity(1 / slow.value, 1 / slow.upper, 1 / slow.lower),
        utilization_ratio=Quantity(*(min(u / factor, 1.0) for u in (busy.value, busy.lower, busy.upper))),
    )
