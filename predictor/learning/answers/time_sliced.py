"""Keeps corrected answers consistent with time slicing, as the predictor's own answers are.

On devices where MPS was never measured, a set under MPS is predicted no slower than the same jobs
time-sliced. The utilisations of time-sliced jobs add up to at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from models.features import Floats
from predictor.learning.answers.corrector import at_step_time
from predictor.types import MemberPrediction, PredictionArrays, Quantity
from profiling.workload import ColocationSet

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


def bounded_sets(sets: Sequence[ColocationSet], predictor: Any, observed: frozenset[str]) -> list[int]:
    """Numbers of the sets under MPS on a device where MPS was neither in the training data nor `observed`."""
    devices = {s.device for s in sets if s.sharing == "mps"}
    never = _never_measured(devices, predictor, observed)
    return [k for k, s in enumerate(sets) if s.sharing == "mps" and s.device in never] if never else []


def bounded_rows(rows: Integers, sharing: str, predictor: Any, observed: frozenset[str]) -> list[int]:
    """Like `bounded_sets`, for sets whose rows [S, M] in the predictor's table are known."""
    if sharing != "mps":
        return []
    device_of = {row: predictor.table_.keys[row][1] for row in np.unique(rows[:, 0]).tolist()}
    never = _never_measured(set(device_of.values()), predictor, observed)
    return np.flatnonzero(np.isin(rows[:, 0], [k for k, d in device_of.items() if d in never])).tolist()


def _never_measured(devices: set[str], predictor: Any, observed: frozenset[str]) -> set[str]:
    table = getattr(predictor, "table_", None)
    return set() if table is None else {d for d in devices - observed if table.is_bounded(d, "mps")}


def no_slower(arrays: PredictionArrays, places: Sequence[int], slowdown: Floats) -> PredictionArrays:
    """Limit the slowdowns of the sets at `places` [P] to `slowdown` [P, K]."""
    most = np.full((len(arrays.slowdown), arrays.slowdown.shape[1]), np.inf)
    most[places, : slowdown.shape[1]] = slowdown
    least = np.minimum(arrays.slowdown, most)
    # The device does the same work for a job; a faster step does it in less time.
    busy = np.minimum(arrays.utilization_ratio * (arrays.slowdown / least), 1.0)
    step = arrays.solo_step_time_s * least
    return replace(arrays, slowdown=least, step_time_s=step, utilization_ratio=busy)


def members_bounded(
    members: tuple[MemberPrediction, ...], sharing: str, slowdown: Sequence[float] | None
) -> tuple[MemberPrediction, ...]:
    """Limit a set's slowdowns to `slowdown` if given.

    Otherwise, if time-sliced, limit total utilisation to 1.
    """
    if slowdown is not None:
        return tuple(map(_no_slower, members, slowdown))
    together = sum([m.utilization_ratio.value for m in members]) if sharing == "time-slice" else 0.0
    return members if together <= 1.0 else tuple(_with_busy(m, 1.0 / together) for m in members)


def _with_busy(member: MemberPrediction, factor: float) -> MemberPrediction:
    return structs.replace(member, utilization_ratio=at_step_time(member.utilization_ratio, factor))


def _no_slower(member: MemberPrediction, slowdown: float) -> MemberPrediction:
    factor = slowdown / member.slowdown.value
    if factor >= 1.0:
        return member
    slow, step = member.slowdown, member.step_time_s
    slow = Quantity(slow.value * factor, max(slow.lower * factor, 1.0), slow.upper * factor)
    return structs.replace(
        _with_busy(member, 1.0 / factor),
        slowdown=slow,
        step_time_s=Quantity(step.value * factor, step.lower * factor, step.upper * factor),
        throughput_ratio=slow.inverse(),
    )
