"""Corrected answers beside those of time slicing: under MPS where nobody measured it they are at most those of the same jobs time-sliced, and
jobs that take turns have no more than all of the time, as the predictor's own answers are."""

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
    least = np.minimum(arrays.slowdown, most)
    # The device's work for a job is the same; a quicker step has it in less time.
    busy = np.minimum(arrays.utilization_ratio * (arrays.slowdown / least), 1.0)
    step = arrays.solo_step_time_s * least
    return replace(arrays, slowdown=least, step_time_s=step, utilization_ratio=busy)


def members_no_slower(
    members: Sequence[MemberPrediction], slowdown: Sequence[float]
) -> tuple[MemberPrediction, ...]:
    """The same for members of one set; intervals keep their width."""
    return tuple(map(_no_slower, members, slowdown))


def members_taking_turns(members: tuple[MemberPrediction, ...]) -> tuple[MemberPrediction, ...]:
    """Members of a time-sliced set with no more than all of the time together."""
    together = sum([m.utilization_ratio.value for m in members])
    return members if together <= 1.0 else tuple(_with_busy(m, 1.0 / together) for m in members)


def _with_busy(member: MemberPrediction, factor: float) -> MemberPrediction:
    busy = member.utilization_ratio
    ends = (min(u * factor, 1.0) for u in (busy.value, busy.lower, busy.upper))
    return replace(member, utilization_ratio=Quantity(*ends))


def _no_slower(member: MemberPrediction, slowdown: float) -> MemberPrediction:
    factor = slowdown / member.slowdown.value
    if factor >= 1.0:
        return member
    slow, step = member.slowdown, member.step_time_s
    slow = Quantity(slow.value * factor, max(slow.lower * factor, 1.0), slow.upper * factor)
    return replace(
        _with_busy(member, 1.0 / factor),
        slowdown=slow,
        step_time_s=Quantity(step.value * factor, step.lower * factor, step.upper * factor),
        throughput_ratio=Quantity(1 / slow.value, 1 / slow.upper, 1 / slow.lower),
    )
