"""Accuracy of recent predictions, by device and job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from profiling.errors import InputError
from serving.job_ranges import spec_of
from serving.service import Service
from serving.store.observations import PLAUSIBLE
from serving.store.tables import ObservationRow

# Number of latest observations considered.
_MOST = 2_000


@dataclass(frozen=True, slots=True)
class Point:
    """An observation and the error of its prediction.

    Attributes:
        observed_at: seconds since 1970.
        device, job: device type, and name of the job's model.
        log_ratio: log(observed / predicted step time).
        covered: whether it lies within the 90 % interval.
        corrected_log_ratio: the same ratio for the prediction with the earlier observations; None if it was not stored.
    """

    observed_at: float
    device: str
    job: str
    log_ratio: float
    covered: bool
    corrected_log_ratio: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Observations of one model on one device.

    Attributes:
        count: number of observations.
        error_ratio: mean of |predicted - observed| / observed.
        corrected_error_ratio: the same for predictions with the earlier observations; None if none was stored.
        drift_ratio: exp of the mean log(observed / predicted), minus 1: positive if steps take longer than
            predicted.
        coverage: share within the 90 % interval.
    """

    device: str
    job: str
    count: int
    error_ratio: float
    corrected_error_ratio: float | None
    drift_ratio: float
    coverage: float


def recent(service: Service) -> list[Point]:
    """The latest plausible observations with their predictions, oldest first."""
    row = ObservationRow
    query = (
        select(
            row.observed_at, row.device, row.jobs, row.member, row.step_time_s, row.predicted_step_time_s,
            row.predicted_lower_s, row.predicted_upper_s, row.corrected_step_time_s,
        )
        .where(PLAUSIBLE)
        .order_by(row.id.desc())
        .limit(_MOST)
    )  # fmt: skip
    with service.store.read() as session:
        points = [
            Point(
                at, device, _model_of(jobs[member]), math.log(step / predicted), lower <= step <= upper,
                None if corrected is None else math.log(step / corrected),
            )
            for at, device, jobs, member, step, predicted, lower, upper, corrected in session.execute(query)
        ]  # fmt: skip
    points.reverse()  # those of one request have the same time
    return sorted(points, key=lambda point: point.observed_at)


def _model_of(spec: str) -> str:
    """The model of a stored SPEC, even one that is no longer accepted."""
    try:
        return spec_of(spec).model
    except InputError:
        return spec


def by_job(points: Sequence[Point]) -> list[Calibration]:
    """Group by device and model, largest error first."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.device, point.job), []).append(point)
    rows = [
        Calibration(
            device,
            job,
            len(some),
            _mean_error([p.log_ratio for p in some]),
            _mean_error(corrected) if (corrected := _corrected(some)) else None,
            math.expm1(sum(p.log_ratio for p in some) / len(some)),
            sum(p.covered for p in some) / len(some),
        )
        for (device, job), some in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.error_ratio)


def _corrected(points: Sequence[Point]) -> list[float]:
    return [p.corrected_log_ratio for p in points if p.corrected_log_ratio is not None]


def _mean_error(log_ratios: Sequence[float]) -> float:
    return sum(abs(math.expm1(-ratio)) for ratio in log_ratios) / len(log_ratios)
